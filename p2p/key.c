/* The key of a cached verdict. */
#include "key.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/json_read.h"
#include "base/sha256.h"

int hx_key_of(const struct hx_facts *f, const char *probe_program, char out[72],
              struct hx_error *err)
{
    struct hx_buf b = HX_BUF_INIT(256u << 10);
    char hex[HX_SHA256_HEX] = "none";
    uint64_t size;
    uint8_t digest[HX_SHA256_BYTES];
    if (probe_program && hx_sha256_file(probe_program, hex, &size, NULL) < 0)
        snprintf(hex, sizeof(hex), "none");
    hx_buf_printf(&b, "1\n%s\n%s\n%d\n%s\n%s\n%d\n%s\n", f->driver.proc.version,
                  f->driver.proc.builder, f->driver.proc.open_module, f->driver.srcversion,
                  f->platform.cmdline, (int)f->platform.iommu, hex);
    for (int i = 0; i < f->n_cards; i++) {
        const struct hx_card *c = &f->card[i];
        char address[20];
        hx_pci_address_text(&c->pci->address, address);
        hx_buf_printf(&b, "%s %s %d %d", address, c->nvml < 0 ? "-" : f->nvml.device[c->nvml].uuid,
                      c->link.gen, c->link.width);
        for (int h = 0; h < c->pci->n_hops; h++)
            hx_buf_printf(&b, " %x", c->pci->hop[h].acs_known ? c->pci->hop[h].acs_ctl : 0x10000u);
        hx_buf_putc(&b, '\n');
    }
    int r = b.failed ? hx_fail(err, -ENOMEM, "out of memory") : 0;
    if (r == 0 && hx_sha256_data(b.data, b.len, digest) < 0)
        r = hx_fail(err, -ENOMEM, "out of memory");
    if (r == 0) {
        hx_sha256_to_hex(digest, hex);
        snprintf(out, 72, "%s", hex);
    }
    hx_buf_done(&b);
    return r;
}

static void read_lock(const char *path, const char *key, char out[16])
{
    static const char *const words[] = {"corrupt", "hang"};
    char *text;
    size_t len;
    struct hx_json *doc;
    struct hx_json_limits limits = {4u << 20, 200000, 16, 0};
    if (hx_file_read(path, 4u << 20, &text, &len, NULL) < 0)
        return;
    if (hx_json_parse(text, len, &limits, &doc, NULL) == 0) {
        struct hx_jv root = hx_json_root(doc), axes = hx_jv_get(root, "axes");
        struct hx_jv word = hx_jv_get(axes.doc ? axes : root, "p2p");
        for (size_t i = 0; i < 2; i++)
            if (hx_jv_str_is(hx_jv_get(root, "key"), key) && hx_jv_str_is(word, words[i]))
                snprintf(out, 16, "%s", words[i]);
        hx_json_free(doc);
    }
    free(text);
}

/* The mark of `hx-cards watch` lies beside the result. */
static int mark_path(const char *result_path, char *out, size_t cap)
{
    const char *slash = strrchr(result_path, '/');
    int n = snprintf(out, cap, "%.*swatch.json", slash ? (int)(slash + 1 - result_path) : 0,
                     result_path);
    return n < 0 || (size_t)n >= cap ? -ENAMETOOLONG : 0;
}

void hx_key_lock(const char *result_path, const char *key, char out[16])
{
    char mark[PATH_MAX];
    out[0] = '\0';
    read_lock(result_path, key, out);
    if (!out[0] && mark_path(result_path, mark, sizeof(mark)) == 0)
        read_lock(mark, key, out);
}

int hx_key_release(const char *result_path, struct hx_error *err)
{
    char mark[PATH_MAX];
    int r = mark_path(result_path, mark, sizeof(mark));
    if (r < 0)
        return hx_fail(err, r, "%s: the name is too long", result_path);
    return unlink(mark) == 0 || errno == ENOENT ? 0
                                                : hx_fail_errno(err, errno, "removing %s", mark);
}
