kv_SRCS := layout.c blocks.c mirror.c prefix.c
kv_DEPS := model backend base
$(call hx_module,kv,engine/kv)
