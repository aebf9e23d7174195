/* Remedies, and what checks have in common. */
#include "check.h"

#include <string.h>

static const struct {
    const char *id, *text;
} remedies[] = {
    {"R-NONE", "No action needed."},
    {"R-SEAT",
     "Fewer cards answer on the PCIe bus than expected. Power the machine off completely, wait 60 "
     "seconds, check the card's power plug (8-pin EPS type, not PCIe), the riser and the slot, "
     "then start again. A restart alone does not bring a lost card back."},
    {"R-VARIANT", "This model needs four cards with 64 GiB each. A 10 GB card gives at most 40 GiB "
                  "and cannot be one of the four."},
    {"R-UNSUP",
     "This is not a CMP 170HX. The appliance will not use it and will not change its settings."},
    {"R-COLD", "Shut down, switch the power supply off for 60 seconds and start again. A warm "
               "restart keeps the card's broken state."},
    {"R-BUNDLE", "No unlock bundle is active. Point Setup > Firmware tools at your driver/unlock "
                 "bundle, let it verify and install, then power the machine off and on again."},
    {"R-SHADOW", "Another NVIDIA kernel module hides the one from your bundle. Choose Repair "
                 "modules: the other copy is moved aside, the module index and the boot image are "
                 "rebuilt, and a cold start follows."},
    {"R-DRIVER", "Driver parts do not match each other or the bundle's exact version. Reinstall "
                 "the bundle; do not mix package-manager drivers with it."},
    {"R-GSPON", "GPU system firmware was switched off. GA100 cards cannot start without it; the "
                "setting is removed and a cold start follows."},
    {"R-INITRD", "The module options never reached the driver because the boot image lacks them. "
                 "Rebuild the boot image and start cold."},
    {"R-UNSAFE",
     "This bundle's memory layout hands out memory the card keeps for itself; a full card then "
     "faults and stays dead until a power cycle. Use a bundle whose safety marker is accepted."},
    {"R-KERNEL", "The running kernel has no bundle modules. Start the pinned kernel from the boot "
                 "menu or let the appliance rebuild the modules for this kernel."},
    {"R-SECBOOT",
     "Secure Boot refuses unsigned modules. Either switch Secure Boot off in firmware setup or "
     "enrol the appliance's own key (Setup > Firmware tools > Sign modules)."},
    {"R-ALIAS", "The card reports more memory than it really has: different addresses share the "
                "same cells. It must not be used for inference. Known cause: 8 GB cards with half "
                "the memory stacks reachable, or a 10 GB card forced to 80 GB."},
    {"R-BADHBM", "Memory returned wrong data. There is no error correction on this card, so the "
                 "model would silently produce rubbish. Leave this card out; rerun the long test "
                 "with better cooling and stock memory clock before giving up on it."},
    {"R-HBMCLK", "Cards run different memory clocks. The slowest card sets the pace; this is a "
                 "firmware version difference and is harmless."},
    {"R-HBMOC", "Memory runs above its normal clock. Return to stock unless a long hot test with "
                "the real workload has been passed at this clock."},
    {"R-UNTHROTTLE",
     "Compute is still limited (about 0.4 TFLOPS FP32, 6 TFLOPS tensor). Memory size alone does "
     "not prove the unlock. Start cold; if it stays, reinstall the bundle."},
    {"R-PWRBRK", "The mainboard holds the card's power-brake pin, so it runs at a third of its "
                 "speed. Insulate edge-connector pin B30 or use a riser that leaves it open."},
    {"R-SM70", "70 of 74 compute units are enabled. Measured effect on this model is negligible; "
               "nothing to do."},
    {"R-GEN1",
     "The link runs at 2.5 GT/s. Check that the bundle includes the Gen2 part, that its options "
     "reached the driver, and the Gen2 log. Do not try Gen3: the card drops off the bus."},
    {"R-WIDTH",
     "The link is narrower than x16. Four lanes is how the card ships; sixteen needs 24 capacitors "
     "soldered. Eight usually means an incomplete joint or a bifurcated slot."},
    {"R-RISER", "The slot or riser above this card is slower or narrower than the card. Move it or "
                "change bifurcation in firmware setup."},
    {"R-LINKBW", "Copies run well below what this link should give. Check AER counters, riser and "
                 "cable; rerun with the cards idle."},
    {"R-AER", "The PCIe link reports errors. Reseat, shorten the riser, keep Gen2 only; errors "
              "under load end in a lost card."},
    {"R-BAR1", "The firmware gave this card no usable large window. Enable Above 4G Decoding and "
               "the largest MMIO-high setting, add pci=realloc (and a large hpmmioprefsize behind "
               "switches), or use a bundle that needs only the small window."},
    {"R-IOMMU", "Translation by the IOMMU is on, which slows direct copies to under 0.5 GB/s or "
                "breaks them. Choose P2P boot mode (IOMMU off) or passthrough if your bundle's "
                "notes say passthrough is enough."},
    {"R-ACS", "A bridge sends card-to-card traffic up to the processor. The appliance can clear "
              "the redirect bits at each boot (it is not stored in hardware). Do this only on a "
              "machine that runs no virtual machines."},
    {"R-TOPO", "Cards hang off different processors. Put all four on one socket if possible."},
    {"R-VM", "Inside a virtual machine direct copies are not available. Run on bare metal, or use "
             "a layout without P2P."},
    {"R-P2POFF", "Direct copies are unusable here. The appliance runs with P2P off; this is safe."},
    {"R-P2PLIE", "The driver claims direct access but data did not arrive intact. P2P is locked "
                 "off until the driver, kernel or topology changes and the test passes."},
    {"R-P2PSLOW",
     "Direct access works but is slower than going through host memory. P2P stays off."},
    {"R-P2PHANG", "Cards wait for each other for ever (100 % busy at idle power). P2P is locked "
                  "off; stop the service with its own stop command and never with kill -9."},
    {"R-CTX", "The card answers status questions but cannot start work. Stop all GPU processes; if "
              "it stays, start cold."},
    {"R-GSP", "The card's firmware did not start. Start cold with 60 seconds off. If it returns at "
              "every cold start, roll the bundle back."},
    {"R-XID", "The driver reported a GPU fault since boot; see the detail line for its meaning."},
    {"R-LOST", "A card fell off the bus. Only a full power-off brings it back. Check power plug, "
               "riser and cooling before restarting the model."},
    {"R-CAP", "The power limit is not what you set; drivers forget it at every start. The "
              "appliance sets it again now."},
    {"R-COOL", "Too hot. The card has no fan: force air through it (one 40 mm fan is not enough) "
               "and control the fan by memory temperature."},
    {"R-SENSOR", "Memory temperature cannot be read. Keep load low until the sensor is back."},
    {"R-HOST", "The host lacks memory, shared memory or locked-memory allowance for this recipe."},
    {"R-NET", "Set the control-plane interface to loopback; a bridge interface makes every small "
              "message cost half a second."},
    {"R-PERSIST",
     "Driver persistence is off; first use after idle takes seconds and power limits are lost."},
    {"R-REBOOT", "The driver asks for a reset or a restart. Stop the model, then start cold."},
    {"R-DSTATE",
     "A process is stuck inside the driver. It cannot be killed; shut down and start cold."},
    {"R-PP4", "Use pipeline layout (PP4)."},
};

const struct hx_check *hx_check_find(const char *id)
{
    for (int i = 0; i < hx_n_checks; i++)
        if (strcmp(hx_checks[i].id, id) == 0)
            return &hx_checks[i];
    return NULL;
}

const char *hx_remedy_text(const char *id)
{
    for (size_t i = 0; i < sizeof(remedies) / sizeof(remedies[0]); i++)
        if (strcmp(remedies[i].id, id) == 0)
            return remedies[i].text;
    return NULL;
}

const char *hx_verdict_name(enum hx_verdict v)
{
    static const char *const names[] = {"pass", "note", "warn", "fail", "skip"};
    return names[v];
}

const char *hx_check_missing(const struct hx_check *check, const struct hx_facts *f)
{
    const struct {
        unsigned need;
        bool there;
        const char *reason;
    } needs[] = {
        {HX_NEEDS_CARDS, f->n_cards > 0, "no CMP 170HX in this machine"},
        {HX_NEEDS_BUNDLE, f->wanted.bundle.present, "no driver bundle is active"},
        {HX_NEEDS_DRIVER, f->driver.loaded, "the driver is not loaded"},
        {HX_NEEDS_NVML, f->nvml.state == HX_NVML_OK && f->nvml.n_devices > 0,
         "the management library shows no card"},
        {HX_NEEDS_PROBE, f->measured && f->probe.n_devices > 0,
         f->unmeasured[0] ? f->unmeasured : "nothing was measured"},
        {HX_NEEDS_PEERS, f->measured && f->probe.has_p2p,
         f->unmeasured[0] ? f->unmeasured : "no pair of cards was measured"},
        {HX_NEEDS_SUMS, f->measured && f->probe.has_collectives,
         f->unmeasured[0] ? f->unmeasured : "no all-reduce was measured"},
        {HX_NEEDS_LOAD, f->has_load, "no readings under load"},
        {HX_NEEDS_KLOG, f->has_klog, "the kernel log cannot be read (run as root)"},
    };
    for (size_t i = 0; i < sizeof(needs) / sizeof(needs[0]); i++)
        if ((check->applies & needs[i].need) && !needs[i].there)
            return needs[i].reason;
    return "";
}
