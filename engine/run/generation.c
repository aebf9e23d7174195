/* generation_config.json: the sampling defaults that the model's makers ship. */
#include <stdlib.h>

#include "base/file.h"
#include "base/json_read.h"
#include "run/engine_impl.h"

#define MAX_BYTES (1u << 20)

static int read_key(const char *path, struct hx_jv root, const char *key, double max,
                    bool zero_is_fine, double *out, struct hx_error *err)
{
    struct hx_jv v = hx_jv_get(root, key);
    enum hx_json_type type = hx_jv_type(v);
    double x;
    if (type == HX_JSON_NONE || type == HX_JSON_NULL)
        return 0;
    if (!hx_jv_double(v, &x))
        return hx_fail(err, -EINVAL, "%s: %s is %s: expected a number", path, key,
                       hx_json_type_name(type));
    if (!(x >= 0 && x <= max) || (x == 0 && !zero_is_fine))
        return hx_fail(err, -EINVAL, "%s: %s is %g: expected %s 0 and at most %g", path, key, x,
                       zero_is_fine ? "at least" : "more than", max);
    *out = x;
    return 0;
}

int hx_generation_load(const char *dir, double *temperature, double *top_p, struct hx_error *err)
{
    char *path = hx_path_join(dir, "generation_config.json"), *text = NULL;
    struct hx_json *doc = NULL;
    size_t len = 0;
    double t = *temperature, p = *top_p;
    if (!path)
        return hx_fail(err, -ENOMEM, "out of memory");
    int r = hx_file_read(path, MAX_BYTES, &text, &len, err);
    if (r == -ENOENT) {
        free(path);
        return 0;
    }
    if (r == 0) {
        r = hx_json_parse(text, len, &HX_JSON_LIMITS_DEFAULT, &doc, err);
        if (r < 0)
            hx_wrap(err, r, "%s", path);
    }
    if (r == 0 && hx_jv_type(hx_json_root(doc)) != HX_JSON_OBJECT)
        r = hx_fail(err, -EINVAL, "%s: expected an object", path);
    if (r == 0)
        r = read_key(path, hx_json_root(doc), "temperature", 2, true, &t, err);
    if (r == 0)
        r = read_key(path, hx_json_root(doc), "top_p", 1, false, &p, err);
    if (r == 0) {
        *temperature = t;
        *top_p = p;
    }
    hx_json_free(doc);
    free(text);
    free(path);
    return r;
}
