# The stand-in for the NVIDIA management library that tests copy beside a case's nvml.json.
NVML_SHIM := $(O)/tests/libnvml-shim.so
$(NVML_SHIM): tests/p2p/nvml_shim.c $(addprefix engine/base/,json_read.c utf8.c buf.c error.c file.c) $(O)/gen/hx/build_facts.h
	@mkdir -p $(@D)
	@echo "  SO    $(notdir $@)"
	$(Q)$(CC) $(filter-out -fsanitize=% -fPIE,$(HX_CFLAGS)) -O1 -g -fPIC -shared -fvisibility=hidden -o $@ $(filter %.c,$^) -ldl

# Prints the library's answers, for the comparison with nvidia-smi on a machine with a GPU.
$(O)/tests/nvml_print: $(O)/obj/tests/p2p/nvml_print.o $(call hx_libs,hw)
	@mkdir -p $(@D)
	@echo "  LD    $(notdir $@)"
	$(Q)$(CC) $(HX_LDFLAGS) -o $@ $< -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(call hx_sysl,hw)
