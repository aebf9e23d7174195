backend_SRCS := dtype.c
backend_DEPS := base
$(call hx_module,backend,engine/backend)
