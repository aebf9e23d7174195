model_SRCS := safetensors.c safetensors_write.c
model_DEPS := backend base
$(call hx_module,model,engine/model)
