# The image in virtual machines (docs/image-tests.md): harness, scenarios.
vmtest_SRCS := serial.c child.c vm_args.c vm.c
vmtest_DEPS := base
$(call hx_module,vmtest,tests/image)
$(O)/obj/tests/image/%.o $(O)/obj/tests/unit/tests/image/%.o: CFLAGS += -Itests
