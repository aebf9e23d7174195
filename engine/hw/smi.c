/* Parsers of nvidia-smi's output. */
#include "hw/smi.h"

#include <stdio.h>
#include <string.h>

#include "hw/root.h"

#define COLUMNS 64

struct cell {
    const char *text;
    size_t len;
};

/* Splits one line at commas; blanks around a cell are dropped. */
static int split(const char *line, size_t len, struct cell out[COLUMNS])
{
    int n = 0;
    for (size_t at = 0; n < COLUMNS;) {
        const char *comma = memchr(line + at, ',', len - at);
        size_t end = comma ? (size_t)(comma - line) : len;
        size_t from = at, to = end;
        while (from < to && (line[from] == ' ' || line[from] == '\t'))
            from++;
        while (to > from && (line[to - 1] == ' ' || line[to - 1] == '\r'))
            to--;
        out[n++] = (struct cell){line + from, to - from};
        if (!comma)
            break;
        at = end + 1;
    }
    return n;
}

enum kind { TEXT, INTEGER, HEX, MILLI, SWITCH, ECC, RECOVERY, REASONS };

#define FIELD(name, kind, member)                                                                  \
    {                                                                                              \
        name, kind, offsetof(struct hx_nvml_device, member),                                       \
            sizeof(((struct hx_nvml_device *)0)->member)                                           \
    }
static const struct {
    const char *name; /* column without its unit */
    enum kind kind;
    size_t offset, size;
} fields[] = {
    FIELD("uuid", TEXT, uuid),
    FIELD("pci.bus_id", TEXT, bus_id),
    FIELD("pci.device_id", HEX, pci_device),
    FIELD("pci.sub_device_id", HEX, pci_subsystem),
    FIELD("name", TEXT, name),
    FIELD("vbios_version", TEXT, vbios),
    FIELD("memory.total", INTEGER, memory_total_mib),
    FIELD("pcie.link.gen.gpucurrent", INTEGER, link_gen),
    FIELD("pcie.link.gen.max", INTEGER, link_gen_max),
    FIELD("pcie.link.width.current", INTEGER, link_width),
    FIELD("power.limit", MILLI, power_limit_mw),
    FIELD("power.draw", MILLI, power_mw),
    FIELD("temperature.gpu", INTEGER, core_c),
    FIELD("temperature.memory", INTEGER, memory_c),
    FIELD("clocks.sm", INTEGER, sm_mhz),
    FIELD("clocks.mem", INTEGER, mem_mhz),
    FIELD("persistence_mode", SWITCH, persistence),
    FIELD("ecc.mode.current", ECC, ecc),
    FIELD("gpu_recovery_action", RECOVERY, recovery),
    FIELD("clocks_event_reasons.active", REASONS, reasons),
};
#define N_FIELDS (sizeof(fields) / sizeof(fields[0]))

static bool is(struct cell c, const char *word)
{
    return c.len == strlen(word) && memcmp(c.text, word, c.len) == 0;
}

static int32_t number(struct cell c, double scale)
{
    double v;
    if (!hx_parse_real(c.text, strspn(c.text, "0123456789."), &v) || v * scale > INT32_MAX)
        return HX_UNKNOWN;
    return (int32_t)(v * scale + 0.5);
}

static int32_t word_number(struct cell c, enum kind kind)
{
    static const char *const actions[] = {"None", "Reset", "Reboot", "Drain P2P",
                                          "Drain and Reset"};
    switch (kind) {
    case SWITCH: return is(c, "Enabled") ? 1 : is(c, "Disabled") ? 0 : HX_UNKNOWN;
    case ECC: return is(c, "Enabled") ? 1 : is(c, "Disabled") ? 0 : -1;
    case RECOVERY:
        for (int i = 0; i < 5; i++)
            if (is(c, actions[i]))
                return i;
        return HX_UNKNOWN;
    default: return HX_UNKNOWN;
    }
}

static void set(struct hx_nvml_device *d, size_t field, struct cell c)
{
    char *to = (char *)d + fields[field].offset;
    uint64_t u = 0;
    int32_t v = HX_UNKNOWN;
    int64_t bits;
    switch (fields[field].kind) {
    case TEXT:
        snprintf(to, fields[field].size, "%.*s", (int)(c.len < 96 ? c.len : 96), c.text);
        return;
    case HEX:
        (void)hx_parse_u64(c.text, c.len, UINT32_MAX, &u);
        memcpy(to, &(uint32_t){(uint32_t)u}, sizeof(uint32_t));
        return;
    case REASONS:
        bits = hx_parse_u64(c.text, c.len, INT64_MAX, &u) ? (int64_t)u : -1;
        memcpy(to, &bits, sizeof(bits));
        return;
    case INTEGER: v = number(c, 1); break;
    case MILLI: v = number(c, 1000); break;
    default: v = word_number(c, fields[field].kind); break;
    }
    memcpy(to, &v, sizeof(v));
}

static void device_unknown(struct hx_nvml_device *d)
{
    memset(d, 0, sizeof(*d));
    d->memory_used_mib = d->memory_reserved_mib = d->bar1_mib = HX_UNKNOWN;
    d->power_default_mw = d->power_min_mw = d->power_max_mw = HX_UNKNOWN;
    d->slowdown_c = d->shutdown_c = d->max_sm_mhz = HX_UNKNOWN;
    d->link_width_max = d->util_pct = HX_UNKNOWN;
    d->replays = d->reasons = -1;
    for (size_t i = 0; i < N_FIELDS; i++)
        if (fields[i].kind != TEXT && fields[i].kind != HEX && fields[i].kind != REASONS)
            memcpy((char *)d + fields[i].offset, &(int32_t){HX_UNKNOWN}, sizeof(int32_t));
}

/* "memory.total [MiB]" is the column memory.total. */
static struct cell without_unit(struct cell c)
{
    for (size_t i = 0; i + 1 < c.len; i++)
        if (c.text[i] == ' ' && c.text[i + 1] == '[')
            return (struct cell){c.text, i};
    return c;
}

static size_t line_length(const char *text, size_t len, size_t at)
{
    const char *end = memchr(text + at, '\n', len - at);
    return end ? (size_t)(end - text) - at : len - at;
}

int hx_smi_parse_query(const char *text, size_t len, struct hx_nvml_snapshot *out,
                       struct hx_error *err)
{
    struct cell head[COLUMNS], row[COLUMNS];
    size_t field_of[COLUMNS];
    memset(out, 0, sizeof(*out));
    for (int a = 0; a < HX_NVML_DEVICES; a++)
        for (int b = 0; b < HX_NVML_DEVICES; b++)
            out->p2p_read[a][b] = out->p2p_write[a][b] = out->topology[a][b] = HX_UNKNOWN;
    size_t n = line_length(text, len, 0);
    int n_head = split(text, n, head), n_known = 0, driver = -1;
    for (int i = 0; i < n_head; i++) {
        struct cell name = without_unit(head[i]);
        field_of[i] = N_FIELDS;
        for (size_t k = 0; k < N_FIELDS; k++)
            if (is(name, fields[k].name))
                field_of[i] = k;
        if (is(name, "driver_version"))
            driver = i;
        n_known += field_of[i] < N_FIELDS;
    }
    if (!n_known)
        return hx_fail(err, -EINVAL, "nvidia-smi: the first line names no known column");
    for (size_t at = n + 1; at < len; at += n + 1) {
        n = line_length(text, len, at);
        if (!n)
            continue;
        if (out->n_devices == HX_NVML_DEVICES)
            return hx_fail(err, -E2BIG, "nvidia-smi: more than %d devices", HX_NVML_DEVICES);
        int n_row = split(text + at, n, row);
        if (n_row != n_head)
            return hx_fail(err, -EINVAL, "nvidia-smi: row %d has %d columns, the header %d",
                           out->n_devices + 1, n_row, n_head);
        struct hx_nvml_device *d = &out->device[out->n_devices++];
        device_unknown(d);
        for (int i = 0; i < n_row; i++)
            if (field_of[i] < N_FIELDS)
                set(d, field_of[i], row[i]);
        if (driver >= 0)
            snprintf(out->driver, sizeof(out->driver), "%.*s",
                     (int)(row[driver].len < 95 ? row[driver].len : 95), row[driver].text);
    }
    out->state = HX_NVML_OK;
    return 0;
}

/* Length of an escape code at s ("ESC [ ... letter"), 0 if there is none. */
static size_t escape_length(const char *s, size_t len)
{
    if (len < 2 || s[0] != 0x1b || s[1] != '[')
        return 0;
    size_t n = 2;
    while (n < len && ((s[n] >= '0' && s[n] <= '9') || s[n] == ';'))
        n++;
    return n < len ? n + 1 : n;
}

/* The next word of a line, escape codes left out; false at its end. */
static bool next_word(const char *line, size_t len, size_t *at, char out[16])
{
    size_t n = 0;
    while (*at < len) {
        size_t skip = escape_length(line + *at, len - *at);
        char c = line[*at];
        bool blank = c == ' ' || c == '\t' || c == '\r' || c == '\0';
        if (skip) {
            *at += skip;
        } else if (blank && n) {
            break;
        } else {
            if (!blank && n < 15)
                out[n++] = c;
            (*at)++;
        }
    }
    out[n] = '\0';
    return n > 0;
}

int hx_smi_parse_matrix(const char *text, size_t len, int *n, hx_smi_cells cell,
                        struct hx_error *err)
{
    int n_rows = 0, side = 0;
    memset(cell, 0, sizeof(hx_smi_cells));
    for (size_t at = 0, count; at < len; at += count + 1) {
        count = line_length(text, len, at);
        char word[16], want[16];
        size_t pos = 0;
        bool any = next_word(text + at, count, &pos, word);
        snprintf(want, sizeof(want), "GPU%d", side ? n_rows : 0);
        if (!any || strcmp(word, want) != 0) {
            if (side)
                break;
            continue;
        }
        if (!side) { /* the header: GPU0 GPU1 ... */
            do {
                side++;
                snprintf(want, sizeof(want), "GPU%d", side);
            } while (next_word(text + at, count, &pos, word) && strcmp(word, want) == 0);
            if (side > HX_NVML_DEVICES)
                return hx_fail(err, -E2BIG, "nvidia-smi topo: more than %d devices",
                               HX_NVML_DEVICES);
            continue;
        }
        if (n_rows == side)
            break;
        for (int i = 0; i < side; i++) {
            if (!next_word(text + at, count, &pos, word))
                return hx_fail(err, -EINVAL, "nvidia-smi topo: row %d has %d of %d columns", n_rows,
                               i, side);
            snprintf(cell[n_rows][i], sizeof(cell[0][0]), "%.7s", word);
        }
        n_rows++;
    }
    if (!side || n_rows != side)
        return hx_fail(err, -EINVAL, "nvidia-smi topo: %d of %d rows", n_rows, side);
    *n = side;
    return 0;
}

int32_t hx_smi_p2p_of_word(const char *word)
{
    static const char *const words[] = {"OK", "CNS", "GNS", "TNS", "DR", "NS", "U"};
    for (int i = 0; i < 7; i++)
        if (strcmp(word, words[i]) == 0)
            return i;
    return HX_UNKNOWN;
}

int32_t hx_smi_topology_of_word(const char *word)
{
    static const struct {
        const char *word;
        int32_t level;
    } levels[] = {{"PIX", HX_NVML_TOPO_PIX},
                  {"PXB", HX_NVML_TOPO_PXB},
                  {"PHB", HX_NVML_TOPO_PHB},
                  {"NODE", HX_NVML_TOPO_NODE},
                  {"SYS", HX_NVML_TOPO_SYS}};
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++)
        if (strcmp(word, levels[i].word) == 0)
            return levels[i].level;
    return HX_UNKNOWN;
}
