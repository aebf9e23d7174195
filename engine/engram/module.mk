engram_SRCS := hash.c reader_pread.c token_map.c fold_table.c rows.c cache.c staging.c files.c \
	reader_uring.c io_threads.c level.c drive.c plan.c stream.c hot.c
engram_DEPS := base
engram_LIBS := -luring
engram_TEST_DEPS := backend
$(call hx_module,engram,engine/engram)
