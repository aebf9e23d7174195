backend_SRCS := dtype.c select.c cpu/device.c cpu/numerics.c cpu/linear.c cpu/exl3.c \
	cpu/norm_rope.c cpu/hc.c cpu/indexer.c cpu/attend.c cpu/moe.c cpu/engram_gate.c cpu/markov.c
backend_DEPS := base
ifneq ($(CUDA),0)
backend_SRCS += cuda/device.c cuda/weights.c cuda/ops.c $(addprefix cuda/kernels/,read.cu rows.cu hyper.cu \
	product.cu gemv.cu router.cu experts.cu exl3.cu fp4.cu kv.cu index.cu attend.cu attend_split.cu engram.cu draft.cu)
backend_LIBS := $(CUDA_LIBS)
$(O)/obj/engine/backend/select.o: HX_CFLAGS += -DHX_HAVE_CUDA
# As the CPU back end: no contraction. Fast kernels ask for fused multiply-adds by name.
$(CUDA_O)/engine/backend/cuda/%.cu.o: NVCC_FLAGS += -fmad=false
endif
backend_TEST_DEPS := model
$(call hx_module,backend,engine/backend)
