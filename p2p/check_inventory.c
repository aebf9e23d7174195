/* INV: which cards are there. */
#include "check.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum hx_verdict hx_find(struct hx_finding *out, enum hx_verdict v, const char *value,
                        const char *detail, ...)
{
    va_list ap;
    snprintf(out->value, sizeof(out->value), "%s", value);
    va_start(ap, detail);
    vsnprintf(out->detail, sizeof(out->detail), detail, ap);
    va_end(ap);
    return v;
}

enum hx_verdict hx_inv_01(const struct hx_facts *f, struct hx_finding *out)
{
    char value[16];
    snprintf(value, sizeof(value), "%d", f->n_cards);
    if (f->n_cards == 0 && f->n_foreign > 0)
        out->remedy = "R-UNSUP";
    enum hx_verdict v = f->n_cards < f->wanted.cards   ? HX_FAIL
                        : f->n_cards > f->wanted.cards ? HX_WARN
                                                       : HX_PASS;
    return hx_find(out, v, value, "%d of %d cards on the bus", f->n_cards, f->wanted.cards);
}

enum hx_verdict hx_inv_02(const struct hx_facts *f, struct hx_finding *out)
{
    if (f->n_cards == 0 && f->n_foreign > 0) {
        out->remedy = "R-UNSUP";
        return hx_find(out, HX_FAIL, "other GPU", "only other NVIDIA GPUs are present");
    }
    bool lookalike = false;
    for (int i = 0; i < f->scan.n; i++)
        lookalike |= hx_variant_is_lookalike(f->scan.gpu[i].device);
    if (lookalike)
        return hx_find(out, HX_FAIL, "other GPU",
                       "an A100 sample that looks like the card but cannot be unlocked");
    if (f->n_cards == 0)
        return hx_find(out, HX_SKIP, "", "no CMP 170HX in this machine");
    bool other_board = false;
    for (int i = 0; i < f->n_cards; i++) {
        const struct hx_card *c = &f->card[i];
        if (!c->variant->usable)
            return hx_find(out, HX_FAIL, "10 GB variant", "card %d is the 10 GB variant", i);
        other_board |= c->pci->subsystem_device != c->variant->subsystem;
    }
    if (other_board)
        return hx_find(out, HX_WARN, "other board", "a card has an unknown subsystem id");
    return hx_find(out, HX_PASS, "8 GB variant", "all cards are the 8 GB variant");
}

enum hx_verdict hx_inv_03(const struct hx_facts *f, struct hx_finding *out)
{
    int seen = 0;
    char value[32];
    for (int i = 0; i < f->n_cards; i++)
        seen += f->card[i].nvml >= 0;
    snprintf(value, sizeof(value), "%d/%d", seen, f->n_cards);
    if (!f->driver.loaded)
        out->remedy = "R-DRIVER";
    if (seen < f->n_cards)
        return hx_find(out, HX_FAIL, value,
                       "the driver sees %d of %d cards (management library: %s)", seen, f->n_cards,
                       hx_nvml_state_name((enum hx_nvml_state)f->nvml.state));
    return hx_find(out, HX_PASS, value, "the driver sees every card");
}

enum hx_verdict hx_inv_04(const struct hx_facts *f, struct hx_finding *out)
{
    const char *first = NULL;
    bool mixed = false;
    for (int i = 0; i < f->n_cards; i++) {
        if (f->card[i].nvml < 0)
            continue;
        const char *v = f->nvml.device[f->card[i].nvml].vbios;
        if (!first)
            first = v;
        mixed |= strcmp(first, v) != 0;
    }
    if (!first)
        return hx_find(out, HX_SKIP, "", "no card answers");
    return hx_find(out, mixed ? HX_NOTE : HX_PASS, mixed ? "mixed" : first,
                   mixed ? "cards have different firmware versions"
                         : "all cards have the same firmware version");
}

enum hx_verdict hx_inv_05(const struct hx_facts *f, struct hx_finding *out)
{
    int dead = 0;
    char value[32];
    for (int i = 0; i < f->n_cards; i++)
        dead += !f->card[i].pci->alive;
    snprintf(value, sizeof(value), "%d/%d", f->n_cards - dead, f->n_cards);
    if (dead)
        return hx_find(out, HX_FAIL, value, "%d card(s) read as all ones: they have left the bus",
                       dead);
    return hx_find(out, HX_PASS, value, "every card answers in config space");
}

enum hx_verdict hx_inv_06(const struct hx_facts *f, struct hx_finding *out)
{
    char value[16];
    snprintf(value, sizeof(value), "%d", f->n_foreign);
    if (f->n_foreign)
        return hx_find(out, HX_NOTE, value,
                       "%d other NVIDIA GPU(s): cards are addressed by UUID, never by number, and "
                       "nothing is set on others",
                       f->n_foreign);
    return hx_find(out, HX_PASS, value, "no other NVIDIA GPU");
}
