/* The inventory as text and JSON. */
#include <stdio.h>
#include <string.h>

#include "base/json_write.h"
#include "inventory.h"

static void put_text(struct hx_json_writer *w, const char *key, const char *value)
{
    hx_jw_key(w, key);
    if (value && value[0])
        hx_jw_str(w, value);
    else
        hx_jw_null(w);
}

static void put_int(struct hx_json_writer *w, const char *key, int64_t value)
{
    hx_jw_key(w, key);
    if (value == HX_UNKNOWN)
        hx_jw_null(w);
    else
        hx_jw_int(w, value);
}

/* Milliwatts as watts. */
static void put_watts(struct hx_json_writer *w, const char *key, int32_t mw)
{
    hx_jw_key(w, key);
    if (mw == HX_UNKNOWN)
        hx_jw_null(w);
    else
        hx_jw_finite(w, mw / 1000.0);
}

static const char *ecc_word(int32_t ecc)
{
    return ecc == 1 ? "on" : ecc == 0 ? "off" : ecc == -1 ? "not supported" : "";
}

/* SMs are counted by p2p_check; one value for all cards can be told for each. */
static int64_t sm_of(const struct hx_inventory *v)
{
    return v->last.n_sm == 1 ? v->last.sm[0] : HX_UNKNOWN;
}

static void card_json(struct hx_json_writer *w, const struct hx_inventory *v, int i, bool redact)
{
    static const struct hx_nvml_device nothing = {.memory_total_mib = HX_UNKNOWN,
                                                  .memory_used_mib = HX_UNKNOWN,
                                                  .memory_reserved_mib = HX_UNKNOWN,
                                                  .bar1_mib = HX_UNKNOWN,
                                                  .ecc = HX_UNKNOWN,
                                                  .persistence = HX_UNKNOWN,
                                                  .recovery = HX_UNKNOWN,
                                                  .power_mw = HX_UNKNOWN,
                                                  .power_limit_mw = HX_UNKNOWN,
                                                  .power_default_mw = HX_UNKNOWN,
                                                  .power_min_mw = HX_UNKNOWN,
                                                  .power_max_mw = HX_UNKNOWN,
                                                  .core_c = HX_UNKNOWN,
                                                  .memory_c = HX_UNKNOWN,
                                                  .slowdown_c = HX_UNKNOWN,
                                                  .shutdown_c = HX_UNKNOWN,
                                                  .sm_mhz = HX_UNKNOWN,
                                                  .mem_mhz = HX_UNKNOWN,
                                                  .max_sm_mhz = HX_UNKNOWN,
                                                  .reasons = -1,
                                                  .replays = -1,
                                                  .util_pct = HX_UNKNOWN};
    const struct hx_card *c = &v->facts.card[i];
    const struct hx_nvml_device *d = c->nvml < 0 ? &nothing : &v->facts.nvml.device[c->nvml];
    char word[128];
    hx_jw_object(w);
    put_int(w, "card", i);
    snprintf(word, sizeof(word), "card-%d", i);
    put_text(w, "uuid", redact ? word : d->uuid);
    if (!redact)
        hx_pci_address_text(&c->pci->address, word);
    put_text(w, "address", word);
    put_text(w, "slot", c->pci->slot);
    snprintf(word, sizeof(word), "%04x", c->pci->device);
    put_text(w, "device", word);
    snprintf(word, sizeof(word), "%04x", c->pci->subsystem_device);
    put_text(w, "subsystem", word);
    put_text(w, "variant", c->variant->name);
    hx_jw_key(w, "usable");
    hx_jw_bool(w, c->variant->usable);
    put_text(w, "state", hx_card_state(v, c));
    put_text(w, "product", d->name);
    put_text(w, "firmware", d->vbios);
    put_int(w, "sm", c->nvml < 0 ? HX_UNKNOWN : sm_of(v));
    put_int(w, "memory_mib", d->memory_total_mib);
    put_int(w, "memory_used_mib", d->memory_used_mib);
    put_int(w, "bar1_mib",
            c->pci->bar1_known ? (int64_t)(c->pci->bar1.size >> 20) : (int64_t)d->bar1_mib);
    hx_jw_key(w, "link");
    hx_jw_object(w);
    put_int(w, "gen", c->link.gen);
    put_int(w, "width", c->link.width);
    put_int(w, "cap_gen", c->pci->max.gen);
    put_int(w, "cap_width", c->pci->max.width);
    hx_jw_end_object(w);
    put_int(w, "numa_node", c->pci->numa_node);
    hx_jw_key(w, "power_w");
    hx_jw_object(w);
    put_watts(w, "now", d->power_mw);
    put_watts(w, "cap", d->power_limit_mw);
    put_watts(w, "default", d->power_default_mw);
    put_watts(w, "min", d->power_min_mw);
    put_watts(w, "max", d->power_max_mw);
    hx_jw_end_object(w);
    hx_jw_key(w, "temp_c");
    hx_jw_object(w);
    put_int(w, "core", d->core_c);
    put_int(w, "memory", d->memory_c);
    hx_jw_end_object(w);
    hx_jw_key(w, "clocks_mhz");
    hx_jw_object(w);
    put_int(w, "sm", d->sm_mhz);
    put_int(w, "memory", d->mem_mhz);
    put_int(w, "max_sm", d->max_sm_mhz);
    hx_jw_end_object(w);
    put_text(w, "ecc", ecc_word(d->ecc));
    hx_reason_words(d->reasons, word, sizeof(word));
    put_text(w, "throttle", word);
    put_int(w, "persistence", d->persistence);
    hx_jw_end_object(w);
}

static const char *tristate(enum hx_tristate t)
{
    return t == HX_YES ? "on" : t == HX_NO ? "off" : "unknown";
}

static const char *iommu_word(enum hx_iommu_mode m)
{
    return m == HX_IOMMU_NONE ? "off" : m == HX_IOMMU_IDENTITY ? "identity" : "translated";
}

static void machine_json(struct hx_json_writer *w, const struct hx_inventory *v, bool redact)
{
    const struct hx_facts *f = &v->facts;
    char words[1024];
    hx_jw_key(w, "driver");
    hx_jw_object(w);
    hx_jw_key(w, "loaded");
    hx_jw_bool(w, f->driver.loaded);
    put_text(w, "version", f->driver.proc.version);
    put_text(w, "module_version", f->driver.module_version);
    put_text(w, "library_version", f->nvml.driver);
    put_text(w, "library", hx_nvml_state_name((enum hx_nvml_state)f->nvml.state));
    hx_jw_key(w, "open_module");
    hx_jw_bool(w, f->driver.proc.open_module);
    put_text(w, "builder", redact ? "" : f->driver.proc.builder);
    put_text(w, "srcversion", f->driver.srcversion);
    put_text(w, "registry", f->driver.registry);
    put_int(w, "gpu_firmware", f->driver.gpu_firmware < 0 ? HX_UNKNOWN : f->driver.gpu_firmware);
    put_text(w, "competing", f->driver.competing);
    put_text(w, "module", v->judgement.axes.module);
    put_text(w, "bundle", f->wanted.bundle.present ? f->wanted.bundle.name : "");
    hx_jw_end_object(w);
    hx_jw_key(w, "kernel");
    hx_jw_object(w);
    put_text(w, "release", f->driver.kernel);
    hx_kernel_words(f->platform.cmdline, words, sizeof(words));
    put_text(w, "words", words);
    put_text(w, "iommu", iommu_word(f->platform.iommu));
    put_text(w, "secure_boot", tristate(f->platform.secure_boot));
    hx_jw_key(w, "virtual_machine");
    hx_jw_bool(w, f->platform.hypervisor);
    hx_jw_end_object(w);
}

int hx_inventory_json(const struct hx_inventory *v, bool redact, struct hx_buf *out)
{
    struct hx_json_writer w;
    hx_jw_init(&w, out, true);
    hx_jw_object(&w);
    put_int(&w, "schema", 1);
    put_text(&w, "overall", hx_overall_name(v->judgement.overall));
    put_int(&w, "foreign_gpus", v->facts.n_foreign);
    hx_jw_key(&w, "cards");
    hx_jw_array(&w);
    for (int i = 0; i < v->facts.n_cards; i++)
        card_json(&w, v, i, redact);
    hx_jw_end_array(&w);
    machine_json(&w, v, redact);
    hx_jw_key(&w, "measured");
    hx_jw_object(&w);
    hx_jw_key(&w, "there");
    hx_jw_bool(&w, v->last.there);
    hx_jw_key(&w, "this_start");
    hx_jw_bool(&w, v->last.this_boot);
    put_text(&w, "compute", v->last.compute);
    put_text(&w, "p2p", v->last.p2p);
    put_text(&w, "layout", v->last.layout);
    hx_jw_end_object(&w);
    hx_jw_end_object(&w);
    return out->failed ? -ENOMEM : 0;
}

/* "value unit" or "-". */
static const char *cell(char *buf, size_t size, int64_t value, const char *unit)
{
    if (value == HX_UNKNOWN)
        snprintf(buf, size, "-");
    else
        snprintf(buf, size, "%lld%s", (long long)value, unit);
    return buf;
}

static void card_text(const struct hx_inventory *v, int i)
{
    const struct hx_card *c = &v->facts.card[i];
    const struct hx_nvml_device *d = c->nvml < 0 ? NULL : &v->facts.nvml.device[c->nvml];
    char address[32], link[32], cap[32], a[32], b[32], x[32], reasons[128];
    hx_pci_address_text(&c->pci->address, address);
    snprintf(link, sizeof(link), "Gen%d x%d", c->link.gen, c->link.width);
    snprintf(cap, sizeof(cap), "Gen%d x%d", c->pci->max.gen, c->pci->max.width);
    printf("card %d  %s, %s (%04x:%04x) at %s%s%s\n", i, hx_card_state(v, c), c->variant->title,
           c->pci->device, c->pci->subsystem_device, address, c->pci->slot[0] ? ", slot " : "",
           c->pci->slot);
    if (!c->pci->alive) {
        puts("        does not answer on the bus; only a full power-off brings it back");
        return;
    }
    printf("        link %s (capability %s), BAR1 %s\n", c->link.gen ? link : "unknown",
           c->pci->max.gen ? cap : "unknown",
           c->pci->bar1_known ? cell(a, sizeof(a), (int64_t)(c->pci->bar1.size >> 20), " MiB")
                              : "unknown");
    if (!d)
        return;
    hx_reason_words(d->reasons, reasons, sizeof(reasons));
    printf("        memory %s, SMs %s, ECC %s, firmware %s\n",
           cell(a, sizeof(a), d->memory_total_mib, " MiB"), cell(b, sizeof(b), sm_of(v), ""),
           ecc_word(d->ecc)[0] ? ecc_word(d->ecc) : "-", d->vbios[0] ? d->vbios : "-");
    printf("        power %s",
           cell(a, sizeof(a), d->power_mw == HX_UNKNOWN ? HX_UNKNOWN : d->power_mw / 1000, " W"));
    printf(" of %s, ",
           cell(a, sizeof(a),
                d->power_limit_mw == HX_UNKNOWN ? HX_UNKNOWN : d->power_limit_mw / 1000, " W"));
    printf("core %s, memory %s, clocks %s/", cell(a, sizeof(a), d->core_c, " C"),
           cell(b, sizeof(b), d->memory_c, " C"), cell(x, sizeof(x), d->sm_mhz, ""));
    printf("%s, throttled by: %s\n", cell(a, sizeof(a), d->mem_mhz, " MHz"),
           reasons[0] ? reasons : "unknown");
}

void hx_inventory_text(const struct hx_inventory *v)
{
    const struct hx_facts *f = &v->facts;
    char words[1024];
    if (f->n_cards == 0)
        puts(f->n_foreign ? "No CMP 170HX was found in this machine, only other NVIDIA GPUs. They "
                            "are not used and their settings are not changed."
                          : "No CMP 170HX was found in this machine.");
    for (int i = 0; i < f->n_cards; i++)
        card_text(v, i);
    if (f->driver.loaded)
        printf("driver  %s, %s module (%s), library %s\n", f->driver.proc.version,
               f->driver.proc.open_module ? "open" : "closed", v->judgement.axes.module,
               f->nvml.driver[0] ? f->nvml.driver
                                 : hx_nvml_state_name((enum hx_nvml_state)f->nvml.state));
    else
        puts("driver  not loaded");
    if (f->driver.registry[0])
        printf("        options %s\n", f->driver.registry);
    if (f->wanted.bundle.present)
        printf("bundle  %s for driver %s\n", f->wanted.bundle.name,
               f->wanted.bundle.driver_version);
    hx_kernel_words(f->platform.cmdline, words, sizeof(words));
    printf("kernel  %s, IOMMU %s, Secure Boot %s%s%s\n", f->driver.kernel,
           iommu_word(f->platform.iommu), tristate(f->platform.secure_boot),
           words[0] ? ", words " : "", words);
    if (v->last.there)
        printf("last    p2p_check: compute %s, P2P %s, layout %s%s\n", v->last.compute, v->last.p2p,
               v->last.layout, v->last.this_boot ? "" : " (at an earlier start)");
}
