/* PCI addresses, config space and the texts of sysfs. */
#include "hw/pci.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define CAP_EXPRESS     0x10
#define EXT_CAP_AER     0x0001
#define EXT_CAP_ACS     0x000d
#define STATUS_CAP_LIST 0x10

#define RESOURCE_MEM      0x00000200u
#define RESOURCE_PREFETCH 0x00002000u
#define RESOURCE_64BIT    0x00100000u

/* Hexadecimal digits up to a stop character; false if there are none or more than most. */
static bool take_hex(const char **s, size_t most, uint32_t *out)
{
    uint32_t v = 0;
    size_t n = 0;
    while (isxdigit((unsigned char)**s) && n < most) {
        int c = tolower((unsigned char)**s);
        v = v << 4 | (uint32_t)(c <= '9' ? c - '0' : c - 'a' + 10);
        (*s)++;
        n++;
    }
    *out = v;
    return n > 0;
}

bool hx_pci_address_parse(const char *text, struct hx_pci_address *out)
{
    uint32_t domain, bus, device, function;
    const char *s = text;
    if (!take_hex(&s, 8, &domain) || *s++ != ':' || !take_hex(&s, 2, &bus) || *s++ != ':' ||
        !take_hex(&s, 2, &device) || *s++ != '.' || !take_hex(&s, 1, &function) || *s != '\0')
        return false;
    if (device > 31 || function > 7)
        return false;
    *out = (struct hx_pci_address){domain, (uint8_t)bus, (uint8_t)device, (uint8_t)function};
    return true;
}

void hx_pci_address_text(const struct hx_pci_address *a, char out[20])
{
    snprintf(out, 20, "%04x:%02x:%02x.%x", a->domain, a->bus, a->device, a->function);
}

bool hx_pci_address_equal(const struct hx_pci_address *a, const struct hx_pci_address *b)
{
    return a->domain == b->domain && a->bus == b->bus && a->device == b->device &&
           a->function == b->function;
}

int hx_pci_gen_of_speed(const char *text)
{
    static const struct {
        double gts;
        int gen;
    } speeds[] = {{2.5, 1}, {5, 2}, {8, 3}, {16, 4}, {32, 5}, {64, 6}};
    size_t n = strspn(text, "0123456789.");
    double v;
    if (!hx_parse_real(text, n, &v))
        return 0;
    while (text[n] == ' ')
        n++;
    if (strncmp(text + n, "GT/s", 4) != 0)
        return 0;
    for (size_t i = 0; i < sizeof(speeds) / sizeof(speeds[0]); i++)
        if (v == speeds[i].gts)
            return speeds[i].gen;
    return 0;
}

static uint16_t get16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t get32(const uint8_t *p)
{
    return get16(p) | (uint32_t)get16(p + 2) << 16;
}

/* Speed and width fields of LnkCap and LnkSta have the same places. */
static struct hx_pci_link link_of_word(uint32_t word)
{
    int gen = (int)(word & 15), width = (int)(word >> 4 & 63);
    return (struct hx_pci_link){gen <= 6 ? gen : 0, width <= 32 ? width : 0};
}

static void decode_capabilities(const uint8_t *data, size_t len, struct hx_pci_config *out)
{
    if (!(get16(data + 6) & STATUS_CAP_LIST))
        return;
    size_t at = data[0x34] & 0xfc;
    /* 48 entries of 4 bytes fill the space: more steps are a loop. */
    for (int steps = 0; at >= 0x40 && at + 2 <= len && steps < 48; steps++) {
        if (data[at] == CAP_EXPRESS && at + 0x14 <= len && !out->has_express) {
            out->has_express = true;
            out->port_type = data[at + 2] >> 4;
            out->cap = link_of_word(get32(data + at + 0x0c));
            out->now = link_of_word(get16(data + at + 0x12));
        }
        at = data[at + 1] & 0xfc;
    }
}

static void decode_extended(const uint8_t *data, size_t len, struct hx_pci_config *out)
{
    size_t at = 0x100;
    for (int steps = 0; at >= 0x100 && at + 8 <= len && steps < 960; steps++) {
        uint32_t head = get32(data + at);
        if (head == 0 || head == UINT32_MAX)
            return;
        uint16_t id = (uint16_t)(head & 0xffff);
        if (id == EXT_CAP_ACS && !out->has_acs) {
            out->has_acs = true;
            out->acs_cap = get16(data + at + 4);
            out->acs_ctl = get16(data + at + 6);
        } else if (id == EXT_CAP_AER && at + 0x14 <= len && !out->has_aer) {
            out->has_aer = true;
            out->aer_uncorrectable = get32(data + at + 4);
            out->aer_correctable = get32(data + at + 0x10);
        }
        at = head >> 20 & 0xffc;
    }
}

void hx_pci_config_decode(const uint8_t *data, size_t len, struct hx_pci_config *out)
{
    *out = (struct hx_pci_config){0};
    if (len < 64 || get32(data) == UINT32_MAX)
        return;
    out->alive = true;
    out->vendor = get16(data);
    out->device = get16(data + 2);
    out->revision = data[8];
    out->class_code = get32(data + 8) >> 8;
    out->header_type = data[0x0e] & 0x7f;
    if (out->header_type == 0) {
        out->subsystem_vendor = get16(data + 0x2c);
        out->subsystem_device = get16(data + 0x2e);
    }
    decode_capabilities(data, len, out);
    if (len > 0x100)
        decode_extended(data, len, out);
}

/* One line "start end flags" in hexadecimal. */
static bool take_range(const char **s, const char *end, struct hx_pci_range *range, uint64_t *flags)
{
    uint64_t v[3];
    for (int i = 0; i < 3; i++) {
        while (*s < end && **s == ' ')
            (*s)++;
        const char *from = *s;
        while (*s < end && isxdigit((unsigned char)**s) + (**s == 'x') + (**s == 'X'))
            (*s)++;
        if (!hx_parse_u64(from, (size_t)(*s - from), UINT64_MAX, &v[i]))
            return false;
    }
    while (*s < end && **s == ' ')
        (*s)++;
    if (*s < end && *(*s)++ != '\n')
        return false;
    if (v[1] < v[0])
        return false;
    *range = (struct hx_pci_range){v[0], v[2] ? v[1] - v[0] + 1 : 0};
    *flags = v[2];
    return true;
}

int hx_pci_bar1_of_resource(const char *text, size_t len, struct hx_pci_range *out)
{
    const char *s = text, *end = text + len;
    struct hx_pci_range range;
    uint64_t flags, want = 0;
    for (uint64_t line = 0; line <= 2; line++) {
        if (!take_range(&s, end, &range, &flags))
            return -EINVAL;
        if (line == 0)
            want = flags & RESOURCE_64BIT ? 2 : 1;
        else if (line == want)
            break;
    }
    bool memory = (flags & RESOURCE_MEM) && (flags & RESOURCE_PREFETCH);
    *out = memory ? range : (struct hx_pci_range){0};
    return 0;
}
