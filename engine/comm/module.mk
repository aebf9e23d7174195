comm_SRCS := thread.c delay.c
comm_DEPS := backend base
$(call hx_module,comm,engine/comm)
# Kernels that the engine and the probe share.
ifneq ($(CUDA),0)
comm-kernels_SRCS := kernels/p2p.cu
comm-kernels_LIBS := $(CUDA_LIBS)
$(call hx_module,comm-kernels,engine/comm)
endif
