run_SRCS := rank.c memory_plan.c feed.c draft.c sampler.c stream.c plan.c sequence.c request.c scheduler.c stats.c generation.c \
	engine.c
run_DEPS := kv engram model comm backend base
$(call hx_module,run,engine/run)
