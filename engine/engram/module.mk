engram_SRCS := hash.c reader_pread.c
engram_DEPS := base
engram_TEST_DEPS := backend
$(call hx_module,engram,engine/engram)
