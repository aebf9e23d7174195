model_SRCS := safetensors.c safetensors_write.c dsv41_hparams.c maps.c
model_DEPS := backend base
$(call hx_module,model,engine/model)
