/* The kernel log: reading it and finding the lines that matter. */
#include "hw/klog.h"

#include <ctype.h>
#include <fcntl.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/klog.h>
#include <unistd.h>

#include "base/buf.h"

#define LINE_MAX_BYTES  1024
#define ACTION_READ_ALL 3
#define ACTION_SIZE     10

/* Extended regular expressions, one line at a time. The words are messages of the Linux kernel, of
 * the NVIDIA open kernel modules and of community builds (hardware.md 1.7). */
static const struct {
    enum hx_klog_sign sign;
    bool names_card; /* counts only where the line names a card */
    const char *pattern;
} signs[] = {
    {HX_KLOG_GSP_FATAL, false,
     "RmInitAdapter failed! \\(0x62:0x40:2028\\)|RmInitAdapter failed! \\(0x62:0xffff:2119\\)|"
     "Max GSP-RM boot attempts exceeded|unexpected WPR2 already up|"
     "Booter failed with non-zero error code: 0x(15|29)\\b|Xid \\([^)]*\\): 119\\b"},
    {HX_KLOG_GSP_BENIGN, false,
     "Booter failed with non-zero error code: 0x31\\b|failed to execute Booter Load: 0xffff|"
     "dmem\\.bin not found|Skipping BTF generation|No compatible format found|"
     "Cannot find any crtc or sizes|FBHUB Interrupt detected"},
    {HX_KLOG_UNSAFE_LAYOUT, false, "late PMA extension status|SEC2_DEBUG_LATE_PMA: registering"},
    {HX_KLOG_SAFE_LAYOUT, false, "cmpunlocker-safety-v4.*\\bsafe\\b"},
    {HX_KLOG_P2P_ASSERT, false, "Assertion failed: \\(\\(base & RM_PAGE_MASK\\) == 0\\)"},
    {HX_KLOG_IOMMU_FAULT, true,
     "AMD-Vi: Event logged \\[IO_PAGE_FAULT|DMAR: \\[(DMA|DMA Read|DMA Write)[^]]*\\].*fault"},
    {HX_KLOG_BAR_ASSIGN, true, "BAR 1.*(can't assign; no space|failed to assign)"},
    {HX_KLOG_GEN2_FAILED, false, "CMP Gen2: .*without Gen2 link"},
    {HX_KLOG_GEN2_REAL, false, "CMP Gen2: .*status=0x10?41\\b"},
    {HX_KLOG_GPU_LOST, false, "GPU has fallen off the bus|GPU is lost"},
    {HX_KLOG_UNSIGNED, false, "Loading of unsigned module is rejected|Key was rejected by service"},
    {HX_KLOG_MM_CORRUPT, false,
     "Bad swap file entry|Bad page state|general protection fault.*slab"},
};
#define N_SIGNS (sizeof(signs) / sizeof(signs[0]))

/* Severity and meaning; numbers that are not listed are notes. */
static const struct {
    int number;
    enum hx_xid_severity severity;
    const char *meaning;
} xids[] = {
    {1, HX_XID_FAIL, "firmware task exception (reported by one project for this card)"},
    {13, HX_XID_WARN, "shader exception: usually the program, on this card also bad memory"},
    {31, HX_XID_FAIL,
     "GPU memory fault; with REGION_VIOLATION near the top, reserved memory was handed out"},
    {43, HX_XID_WARN, "a program's GPU work was stopped (software)"},
    {45, HX_XID_WARN, "work removed after a killed process; the card may be wedged"},
    {48, HX_XID_FAIL, "double-bit memory error"},
    {61, HX_XID_FAIL, "power-management unit breakpoint"},
    {62, HX_XID_FAIL, "power-management unit halted; seen with unsafe clocks"},
    {63, HX_XID_FAIL, "memory page retirement or row remap recorded"},
    {64, HX_XID_FAIL, "memory page retirement or row remap failed"},
    {74, HX_XID_FAIL, "NVLink error"},
    {79, HX_XID_FAIL, "the card left the PCIe bus; a full power-off is needed"},
    {94, HX_XID_WARN, "contained memory error"},
    {95, HX_XID_FAIL, "uncontained memory error"},
    {109, HX_XID_FAIL, "context switch timeout"},
    {119, HX_XID_FAIL, "GPU firmware did not answer (60 s at start, 6 s at run time)"},
    {120, HX_XID_FAIL, "GPU firmware crashed"},
    {140, HX_XID_FAIL, "unrecovered memory error"},
    {143, HX_XID_FAIL, "card initialisation failed"},
    {154, HX_XID_FAIL, "the driver asks for a reset or a restart"},
};

static int xid_row(int number)
{
    for (size_t i = 0; i < sizeof(xids) / sizeof(xids[0]); i++)
        if (xids[i].number == number)
            return (int)i;
    return -1;
}

enum hx_xid_severity hx_xid_severity(int number)
{
    int i = xid_row(number);
    return i < 0 ? HX_XID_NOTE : xids[i].severity;
}

const char *hx_xid_meaning(int number)
{
    int i = xid_row(number);
    return i < 0 ? "not in this program's table" : xids[i].meaning;
}

static int read_ring(char **out, size_t *len, struct hx_error *err)
{
    int size = klogctl(ACTION_SIZE, NULL, 0);
    if (size < 0)
        return hx_fail_errno(err, errno, "kernel log");
    if (size > (int)HX_KLOG_MAX)
        size = (int)HX_KLOG_MAX;
    char *text = malloc((size_t)size + 1);
    if (!text)
        return hx_fail(err, -ENOMEM, "out of memory");
    int n = klogctl(ACTION_READ_ALL, text, size);
    if (n < 0) {
        int e = errno;
        free(text);
        return hx_fail_errno(err, e, "kernel log");
    }
    text[n] = '\0';
    *out = text;
    *len = (size_t)n;
    return 0;
}

int hx_klog_read(const char *file, char **out, size_t *len, struct hx_error *err)
{
    if (!file)
        return read_ring(out, len, err);
    int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return hx_fail_errno(err, errno, "--kernel-log: %s", file);
    struct hx_buf buf = HX_BUF_INIT(2 * (size_t)HX_KLOG_MAX + 65536);
    int r = 0;
    for (;;) {
        char part[65536];
        ssize_t n = read(fd, part, sizeof(part));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            r = hx_fail_errno(err, errno, "--kernel-log: %s", file);
        if (n <= 0)
            break;
        if (hx_buf_append(&buf, part, (size_t)n) < 0) {
            r = hx_fail(err, -ENOMEM, "out of memory");
            break;
        }
        if (buf.len >= 2 * (size_t)HX_KLOG_MAX)
            hx_buf_consume(&buf, buf.len - HX_KLOG_MAX);
    }
    close(fd);
    if (r == 0 && buf.len > HX_KLOG_MAX)
        hx_buf_consume(&buf, buf.len - HX_KLOG_MAX);
    if (r == 0 && !hx_buf_cstr(&buf))
        r = hx_fail(err, -ENOMEM, "out of memory");
    if (r == 0)
        *out = (char *)hx_buf_take(&buf, len);
    hx_buf_done(&buf);
    return r;
}

/* "01:00.0": DMAR lines leave the domain out. */
static bool names_a_card(const char *line, const struct hx_pci_address *cards, int n)
{
    for (int i = 0; i < n; i++) {
        char address[20];
        hx_pci_address_text(&cards[i], address);
        if (strstr(line, strchr(address, ':') + 1))
            return true;
    }
    return n == 0;
}

static void keep_line(char out[HX_KLOG_LINE], const char *line)
{
    snprintf(out, HX_KLOG_LINE, "%s", line);
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7f)
            *c = '?';
}

/* "Xid (PCI:0000:01:00): 79, ..." */
static void take_xid(const char *line, struct hx_klog_facts *out)
{
    const char *s = strstr(line, "Xid (");
    if (!s || !(s = strchr(s, ')')) || s[1] != ':')
        return;
    s += 2;
    s += strspn(s, " ");
    uint64_t number;
    if (!hx_parse_u64(s, strspn(s, "0123456789"), HX_XID_LIMIT, &number))
        return;
    int at = 0;
    while (at < out->n_xids && out->xid[at].number < number)
        at++;
    if ((at < out->n_xids && out->xid[at].number == number) || out->n_xids == HX_KLOG_XIDS)
        return;
    memmove(&out->xid[at + 1], &out->xid[at], (size_t)(out->n_xids - at) * sizeof(out->xid[0]));
    out->n_xids++;
    out->xid[at].number = (uint16_t)number;
    keep_line(out->xid[at].first, line);
}

int hx_klog_scan(const char *text, size_t len, const struct hx_pci_address *cards, int n,
                 struct hx_klog_facts *out, struct hx_error *err)
{
    memset(out, 0, sizeof(*out));
    regex_t re[N_SIGNS];
    for (size_t i = 0; i < N_SIGNS; i++) {
        if (regcomp(&re[i], signs[i].pattern, REG_EXTENDED | REG_NOSUB) != 0) {
            while (i--)
                regfree(&re[i]);
            return hx_fail(err, -ENOMEM, "out of memory");
        }
    }
    for (size_t at = 0; at < len;) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t all = end ? (size_t)(end - text) - at : len - at;
        char line[LINE_MAX_BYTES + 1];
        size_t use = all < LINE_MAX_BYTES ? all : LINE_MAX_BYTES;
        for (size_t i = 0; i < use; i++) /* other bytes would end the string or the expression */
            line[i] = isascii((unsigned char)text[at + i]) && text[at + i] ? text[at + i] : '?';
        line[use] = '\0';
        at += all + 1;
        for (size_t i = 0; i < N_SIGNS; i++) {
            if (regexec(&re[i], line, 0, NULL, 0) != 0 ||
                (signs[i].names_card && !names_a_card(line, cards, n)))
                continue;
            if (out->sign[signs[i].sign].count++ == 0)
                keep_line(out->sign[signs[i].sign].first, line);
        }
        take_xid(line, out);
    }
    for (size_t i = 0; i < N_SIGNS; i++)
        regfree(&re[i]);
    return 0;
}
