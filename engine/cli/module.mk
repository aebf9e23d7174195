cli_SRCS := inspect_files.c inspect_memory.c inspect_text.c inspect_model.c
cli_DEPS := run text kv engram model comm backend base
$(call hx_module,cli,engine/cli)
$(call hx_program,hx-inspect,engine/cli/inspect.c,cli)
bench_SRCS := bench_step.c bench_extrapolate.c bench_kernels.c bench_experts.c bench_engram.c bench_engram_run.c \
              bench_engram_bare.c
bench_DEPS := run text kv engram model comm backend base
$(call hx_module,bench,engine/cli)
$(call hx_program,hx-bench,engine/cli/bench.c,bench)
