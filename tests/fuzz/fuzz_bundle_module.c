/* Kernel modules of a bundle: refused, or facts that are texts. */
#include "fuzz.h"

#include "bundle/modinfo.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hx_modinfo info;
    struct hx_error err = {0};
    int r = hx_modinfo_parse(data, size, &info, &err);
    if (r < 0) {
        expect_refusal(r, &err);
        return 0;
    }
    EXPECT(info.vermagic[0] && memchr(info.vermagic, 0, sizeof(info.vermagic)));
    EXPECT(memchr(info.name, 0, sizeof(info.name)) &&
           memchr(info.depends, 0, sizeof(info.depends)));
    EXPECT(memchr(info.srcversion, 0, sizeof(info.srcversion)));
    char release[sizeof(info.vermagic)];
    snprintf(release, sizeof(release), "%.*s", (int)strcspn(info.vermagic, " "), info.vermagic);
    EXPECT(hx_modinfo_fits(&info, release) == (strchr(info.vermagic, ' ') != NULL));
    return 0;
}
