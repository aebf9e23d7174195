base_SRCS := error.c buf.c utf8.c json_read.c json_write.c file.c log.c sha256.c sha256_pair.c ed25519.c rand.c conf.c
base_LIBS := -lcrypto -linih
$(call hx_module,base,engine/base)
