base_SRCS := error.c buf.c utf8.c json_read.c json_write.c file.c log.c sha256.c rand.c
base_LIBS := -lcrypto
$(call hx_module,base,engine/base)
