# The CUDA probe: supervisor, steps and the program. Unit tests: tests/unit/p2p/probe.
probe_SRCS := result.c supervise.c reduce.c guard.c
probe_DEPS := hw base
probe_LIBS := -ldl
ifneq ($(CUDA),0)
probe_SRCS += cuda.c content.c steps.c step_device.c step_memory.c step_peer.c step_ipc.c step_reduce.c step_nccl.c
probe_DEPS := probe-kernels comm-kernels hw base
probe-kernels_SRCS := rates.cu memory.cu peer.cu
probe-kernels_LIBS := $(CUDA_LIBS)
$(call hx_module,probe-kernels,p2p/kernels)
else
probe_SRCS += steps_none.c
endif
$(call hx_module,probe,p2p/probe)
$(call hx_program,hx-probe,p2p/probe/main.c,probe)
$(O)/tests/p2p/probe/test_guard: $(O)/tests/libnvml-shim.so
$(O)/tests/p2p/probe/test_program: $(O)/bin/hx-probe
