/* EXL3 decoding (docs/exl3.md): also what the CUDA kernels are tested against. */
#ifndef HX_BACKEND_CPU_EXL3_H
#define HX_BACKEND_CPU_EXL3_H

#include "backend/backend.h"

/* Trellis states of one tile in position order; stored: its 16 x bits words as in the file. */
void hx_exl3_tile_states(const uint16_t *stored, int bits, uint16_t states[256]);
/* Value of a state, binary16 bits. */
uint16_t hx_exl3_code(enum hx_codebook codebook, uint16_t state);
/* One 16 x 16 tile of the rotated matrix; out[row * stride + col]. */
void hx_exl3_tile(enum hx_codebook codebook, int bits, const uint16_t *stored, double *out,
                  int64_t stride);
/* The rotated matrix [k_in][n_out] (padded widths), exact binary16 values. */
void hx_exl3_inner(const struct hx_weight *w, double *inner);
/* diag(suh) H inner H diag(svh), [k_in][n_out]. */
void hx_exl3_matrix(const struct hx_weight *w, double *m);

#endif
