run_SRCS := rank.c
run_DEPS := kv engram model backend base
$(call hx_module,run,engine/run)
