# The stand-in for the NVIDIA management library that tests copy beside a case's nvml.json.
NVML_SHIM := $(O)/tests/libnvml-shim.so
$(NVML_SHIM): tests/p2p/nvml_shim.c $(addprefix engine/base/,json_read.c utf8.c buf.c error.c file.c) $(O)/gen/hx/build_facts.h
	@mkdir -p $(@D)
	@echo "  SO    $(notdir $@)"
	$(Q)$(CC) $(filter-out -fsanitize=% -fPIE,$(HX_CFLAGS)) -O1 -g -fPIC -shared -fvisibility=hidden -o $@ $(filter %.c,$^) -ldl
