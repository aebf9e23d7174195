# Programs that tests use; none is part of the product.
FAULTFS := $(O)/tests/faultfs
$(FAULTFS): tests/tools/faultfs.c
	@mkdir -p $(@D)
	@echo "  LD    faultfs"
	$(Q)$(CC) $(filter-out -I% -fsanitize=%,$(HX_CFLAGS)) $(CFLAGS) -I/usr/include/fuse3 $(filter-out -fsanitize=%,$(HX_LDFLAGS)) -o $@ $< -lfuse3

faultfs: $(FAULTFS)
.PHONY: faultfs
