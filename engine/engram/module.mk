engram_SRCS := hash.c reader_pread.c
engram_DEPS := base
$(call hx_module,engram,engine/engram)
