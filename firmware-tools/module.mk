cards_SRCS := bundle/manifest.c bundle/manifest_rules.c bundle/source.c bundle/tar.c bundle/unpack.c bundle/tree.c \
	bundle/check.c
cards_DEPS := hw base
cards_LIBS := -lz -llzma
$(call hx_module,cards,firmware-tools)
