backend_SRCS := dtype.c select.c cpu/device.c cpu/numerics.c cpu/linear.c cpu/exl3.c \
	cpu/norm_rope.c cpu/hc.c cpu/indexer.c cpu/attend.c cpu/moe.c cpu/engram_gate.c cpu/markov.c
backend_DEPS := base
backend_TEST_DEPS := model
$(call hx_module,backend,engine/backend)
