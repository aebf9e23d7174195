/* Kernel log: any bytes; counts are bounded, kept lines are printable, numbers ascend. */
#include "fuzz.h"

#include "hw/klog.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct hx_klog_facts f;
    struct hx_error err = {0};
    const struct hx_pci_address card = {0, 1, 0, 0};
    size_t lines = 1;
    for (size_t i = 0; i < size; i++)
        lines += data[i] == '\n';
    EXPECT(hx_klog_scan((const char *)data, size, &card, (int)(size & 1), &f, &err) == 0);
    for (int s = 0; s < HX_KLOG_N_SIGNS; s++) {
        EXPECT(f.sign[s].count <= lines);
        EXPECT((f.sign[s].count > 0) == (f.sign[s].first[0] != '\0'));
        for (const char *c = f.sign[s].first; *c; c++)
            EXPECT(*c >= 0x20 && *c < 0x7f);
    }
    EXPECT(f.n_xids >= 0 && f.n_xids <= HX_KLOG_XIDS);
    for (int i = 0; i < f.n_xids; i++) {
        EXPECT(f.xid[i].number <= HX_XID_LIMIT);
        EXPECT(i == 0 || f.xid[i].number > f.xid[i - 1].number);
        EXPECT(hx_xid_meaning(f.xid[i].number) != NULL);
    }
    return 0;
}
