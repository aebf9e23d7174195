/* The probe's result: refused with one line, or judged; any judgement is a whole one. */
#include "fuzz.h"

#include "output.h"

static struct hx_facts f;
static struct hx_judgement j;

/* A machine of four cards at Gen2 x16 that the measurements belong to. */
static void make_machine(void)
{
    hx_wanted_defaults(&f.wanted);
    f.minutes = 1;
    f.driver.loaded = true;
    f.nvml.state = HX_NVML_OK;
    f.nvml.n_devices = f.n_cards = 4;
    for (int i = 0; i < 4; i++) {
        f.scan.gpu[i] = (struct hx_pci_gpu){
            .device = HX_DEVICE_CMP_8GB, .alive = true, .address = {0, (uint8_t)(i + 1), 0, 0}};
        snprintf(f.nvml.device[i].bus_id, sizeof(f.nvml.device[i].bus_id), "0000:0%d:00.0", i + 1);
        f.card[i] = (struct hx_card){.pci = &f.scan.gpu[i],
                                     .variant = hx_variant_of_device(HX_DEVICE_CMP_8GB),
                                     .link = {2, 16}};
    }
    f.scan.n = 4;
    f.measured = true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hx_error err = {0};
    if (!f.n_cards)
        make_machine();
    int r = hx_measured_parse((const char *)data, size, "probe", &f.probe, &err);
    if (r < 0) {
        expect_refusal(r, &err);
        return 0;
    }
    hx_facts_pair(&f);
    hx_judge(&f, &j);
    EXPECT(j.layout.recommend && j.layout.reason);
    EXPECT(strcmp(j.layout.recommend, "NONE") != 0 || !j.layout.predicted);
    for (int i = 0; i < j.n_remedies; i++)
        EXPECT(hx_remedy_text(j.remedy[i]) != NULL);
    struct hx_buf out = HX_BUF_INIT(4u << 20);
    const struct hx_run_facts run = {.mode = "judge", .probe_note = ""};
    EXPECT(hx_output_json(&f, &j, &run, size & 1, &out, &err) == 0);
    static FILE *null;
    if (!null)
        null = fopen("/dev/null", "w");
    EXPECT(null);
    EXPECT(hx_output_text((const char *)out.data, out.len, true, null, &err) == 0);
    hx_buf_done(&out);
    return 0;
}
