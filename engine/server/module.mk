server_SRCS := http.c sse.c routes.c prep.c generation.c choice.c params.c security.c metrics.c \
	error.c options.c openai_chat.c openai_completions.c openai_models.c openai_tokenize.c
server_DEPS := text base
server_LIBS := -lmicrohttpd -lsystemd
server_TEST_DEPS := run
$(call hx_module,server,engine/server)
$(call hx_program,hx-engine,engine/server/main.c,server run)
