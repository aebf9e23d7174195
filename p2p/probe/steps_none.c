/* A build without CUDA: no steps, and the reason. */
#include "probe/probe.h"

const struct hx_probe_step hx_probe_steps[1] = {{0}};
const size_t hx_probe_n_steps = 0;
const char *const hx_probe_without = "built without CUDA";
