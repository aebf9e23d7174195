# Tests that need an NVIDIA GPU of any kind (compute capability 8.0 or newer). One card is enough: pair tests then run
# between streams and buffers of it. `make test-gpu` builds and runs them, test-gpu-sanitize runs them under
# compute-sanitizer; `make gpu-kit` only builds, into GPU_KIT, with the libraries that a bare machine lacks, so that the
# folder can be carried to one and run.sh started there.

GPU_TESTS := $(patsubst tests/gpu/test_%.c,$(O)/gpu/test_%,$(wildcard tests/gpu/test_*.c))
GPU_KIT   ?= $(BUILD)/gpu-kit

ifneq ($(CUDA),0)
# What each test links.
gpu_test_probe   := probe p2p
gpu_test_backend := run engram kv model backend base
gpu_test_experts := backend base
gpu_test_gemv    := backend base
gpu_test_ops     := backend base
gpu_test_attend  := backend base
gpu_test_parts   := backend base
gpu_test_long    := run engram kv model backend base
gpu_test_spec    := run engram kv model backend base
gpu_test_memory  := run engram kv model comm backend base
gpu_test_ranks   := run engram kv model comm backend base
gpu_test_ranks_fast := $(gpu_test_ranks)

.SECONDEXPANSION:
$(O)/gpu/test_%: $(O)/obj/tests/gpu/test_%.o $$(call hx_libs,$$(gpu_test_$$*))
	@mkdir -p $(@D)
	@echo "  LD    gpu test $*"
	$(Q)$(CC) $(HX_LDFLAGS) $(LDFLAGS) -o $@ $< -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(call hx_sysl,$(gpu_test_$*)) -lcmocka -lm

gpu-kit: $(GPU_TESTS) $(O)/bin/hx-probe $(O)/bin/hx-bench
	@rm -rf $(GPU_KIT)
	@mkdir -p $(GPU_KIT)/lib
	$(Q)cp $(GPU_TESTS) $(O)/bin/hx-probe $(O)/bin/hx-bench tests/gpu/run.sh tests/gpu/check_probe.py tests/run-unit.sh $(GPU_KIT)/
	@mkdir -p $(GPU_KIT)/model $(GPU_KIT)/model_exl3/experts
	$(Q)cp -r tests/vectors/model/. $(GPU_KIT)/model/
	$(Q)cp tests/vectors/model_exl3/*.safetensors $(GPU_KIT)/model_exl3/experts/ && cp -r tests/vectors/model_exl3/golden $(GPU_KIT)/model_exl3/
	$(Q)for f in tests/vectors/model/*.*; do ln -s ../model/$${f##*/} $(GPU_KIT)/model_exl3/ || exit 1; done
	$(Q)mkdir -p $(GPU_KIT)/tests/vectors && ln -s ../../model $(GPU_KIT)/tests/vectors/model
	$(Q)strip $(GPU_KIT)/test_* $(GPU_KIT)/hx-*
	$(Q)cp -L $$(ldd $(GPU_TESTS) | sed -n 's/.*lib\(cmocka\|uring\|crypto\)[^ ]* => \([^ ]*\) .*/\2/p' | sort -u) $(GPU_KIT)/lib/

test-gpu: gpu-kit
	$(Q)$(GPU_KIT)/run.sh

test-gpu-sanitize: gpu-kit
	$(Q)$(GPU_KIT)/run.sh sanitize
else
gpu-kit test-gpu test-gpu-sanitize:
	@echo "built without CUDA: no GPU tests"; exit 1
endif
.PHONY: gpu-kit test-gpu test-gpu-sanitize
