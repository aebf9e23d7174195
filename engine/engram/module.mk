engram_SRCS := hash.c reader_pread.c token_map.c fold_table.c
engram_DEPS := base
engram_TEST_DEPS := backend
$(call hx_module,engram,engine/engram)
