# hx-engine-fake: the real server over a scripted engine, for tests of everything between socket and
# engine.
serverfake_SRCS := fake_engine.c fake_text.c
serverfake_DEPS := base
$(call hx_module,serverfake,tests/server)
$(call hx_program,hx-engine-fake,engine/server/main.c,serverfake server)
