/* The kernel log of this boot and the lines that mean something for the cards. */
#ifndef HX_HW_KLOG_H
#define HX_HW_KLOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hw/pci.h"

#define HX_KLOG_MAX  (16u << 20)
#define HX_KLOG_LINE 160
#define HX_KLOG_XIDS 64
#define HX_XID_LIMIT 512 /* greater numbers are counted as other text */

enum hx_klog_sign {
    HX_KLOG_GSP_FATAL,     /* card firmware did not start */
    HX_KLOG_GSP_BENIGN,    /* known noise */
    HX_KLOG_UNSAFE_LAYOUT, /* early build that hands out reserved memory */
    HX_KLOG_SAFE_LAYOUT,   /* a fork's marker of a safe build */
    HX_KLOG_P2P_ASSERT,    /* mailbox never allocated */
    HX_KLOG_IOMMU_FAULT,
    HX_KLOG_BAR_ASSIGN,
    HX_KLOG_GEN2_FAILED, /* build says that the link stayed at Gen1 */
    HX_KLOG_GEN2_REAL,   /* ... and the status word agrees */
    HX_KLOG_GPU_LOST,
    HX_KLOG_UNSIGNED, /* Secure Boot refused a module */
    HX_KLOG_MM_CORRUPT,
    HX_KLOG_N_SIGNS
};

struct hx_klog_facts {
    struct {
        uint32_t count;
        char first[HX_KLOG_LINE]; /* first such line, cut, printable */
    } sign[HX_KLOG_N_SIGNS];
    struct {
        uint16_t number;
        char first[HX_KLOG_LINE];
    } xid[HX_KLOG_XIDS]; /* each number once, ascending */
    int n_xids;
};

/* file NULL: the kernel's own ring buffer (may need privileges: -EPERM). Beyond HX_KLOG_MAX the
 * oldest part is dropped. *out is NUL terminated, free with free(). */
int hx_klog_read(const char *file, char **out, size_t *len, struct hx_error *err) HX_MUST;
/* Any bytes are fine; lines are cut at 1,024 bytes. With n > 0 addresses, faults of the IOMMU and
 * of window allocation count only where a line names one of these functions. -ENOMEM only. */
int hx_klog_scan(const char *text, size_t len, const struct hx_pci_address *cards, int n,
                 struct hx_klog_facts *out, struct hx_error *err) HX_MUST;

enum hx_xid_severity { HX_XID_NOTE, HX_XID_WARN, HX_XID_FAIL };
enum hx_xid_severity hx_xid_severity(int number);
const char *hx_xid_meaning(int number); /* never NULL */

#endif
