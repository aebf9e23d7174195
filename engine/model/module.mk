model_SRCS := safetensors.c safetensors_write.c dsv41_hparams.c dsv41_tensors.c maps.c manifest.c arrays.c \
	slice.c values.c synthetic.c bind.c model.c tiny.c tiny_files.c place.c row_sets.c dsv41_open.c dsv41_layer.c dsv41_forward.c \
	dsv41_graph.c dsv41_draft.c
model_DEPS := backend base
$(call hx_module,model,engine/model)
