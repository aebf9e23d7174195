/* Step planning. */
#include "run/plan.h"

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int plan_one(const struct hx_plan_item *items, int i, int chunk, struct hx_plan_rows *rows)
{
    int64_t left = items[i].prefill_tok;
    rows[0] = (struct hx_plan_rows){i, left > 0 ? (int)min64(left, chunk) : 1, left == 0};
    return 1;
}

int hx_plan_step(const struct hx_plan_item *items, int n, int chunk, uint64_t turn,
                 struct hx_plan_rows *rows)
{
    int n_rows = 0, n_prefill = 0;
    for (int i = 0; i < n; i++) {
        if (items[i].solo && items[i].ready)
            return plan_one(items, i, chunk, rows);
    }
    for (int i = 0; i < n; i++) {
        if (items[i].prefill_tok > 0)
            n_prefill++;
        else if (items[i].ready)
            rows[n_rows++] = (struct hx_plan_rows){i, 1, true};
    }
    /* Two rounds: an even share for each, then what is left in the same order. */
    int first = n_rows, budget = chunk, share = n_prefill > 0 ? chunk / n_prefill : 0;
    for (int round = 0; round < 2 && budget > 0; round++) {
        int at = first;
        for (int k = 0; k < n && budget > 0; k++) {
            int i = (int)((turn + (uint64_t)k) % (uint64_t)n);
            if (items[i].prefill_tok <= 0)
                continue;
            if (round == 0) {
                int take = (int)min64(items[i].prefill_tok, share);
                rows[n_rows++] = (struct hx_plan_rows){i, take, false};
                budget -= take;
            } else if (at < n_rows) {
                int more = (int)min64(items[i].prefill_tok - rows[at].n_tok, budget);
                rows[at++].n_tok += more;
                budget -= more;
            }
        }
    }
    int kept = first;
    for (int i = first; i < n_rows; i++) {
        if (rows[i].n_tok > 0)
            rows[kept++] = rows[i];
    }
    return kept;
}

int hx_plan_victim(const struct hx_plan_item *items, int n)
{
    int youngest = -1;
    for (int i = 0; i < n; i++) {
        if (youngest < 0 || items[i].order > items[youngest].order)
            youngest = i;
    }
    return youngest;
}

bool hx_plan_admits(int need_slots, int free_slots, int need_blocks, int free_blocks, int n_running)
{
    if (need_slots > free_slots)
        return false;
    return n_running == 0 || need_blocks + n_running <= free_blocks;
}
