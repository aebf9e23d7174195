/* Speculative decoding: which drafts go into a step (spec dspark.md section 4). */
#ifndef HX_RUN_DRAFT_H
#define HX_RUN_DRAFT_H

/* Cumulative gate: how many leading drafts have a product of confidences sigmoid(z) of at least
 * `gate`; 0 keeps all n. Depends on nothing that the drafts themselves decide later. */
int hx_draft_gate(const float *z, int n, double gate);

#endif
