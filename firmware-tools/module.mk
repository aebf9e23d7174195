cards_SRCS := bundle/manifest.c bundle/manifest_rules.c bundle/source.c bundle/tar.c bundle/unpack.c bundle/tree.c \
	bundle/check.c bundle/modinfo.c bundle/build.c bundle/journal.c bundle/store.c bundle/sign.c bundle/install.c \
	bundle/host.c bundle/start.c bundle/load.c options.c bundle_command.c inventory.c inventory_output.c cards_command.c confirm.c watch.c watch_command.c
cards_DEPS := p2p hw base
cards_LIBS := -lz -llzma
$(call hx_module,cards,firmware-tools)
$(call hx_program,hx-cards,firmware-tools/main.c,cards)
