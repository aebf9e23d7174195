$(call hx_program,hx-bench,engine/cli/bench.c,run kv engram model backend base)
