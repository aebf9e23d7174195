# Module of each folder below installer/. Unit tests: tests/unit/installer/<folder>.
fetch_SRCS := lock.c lock_write.c trust.c plan.c config.c commands.c cmd_plan.c
fetch_DEPS := text engram model backend base
fetch_LIBS := -lcurl -lsystemd
$(call hx_module,fetch,installer/fetch)
$(call hx_program,hx-fetch,installer/fetch/main.c,fetch)
