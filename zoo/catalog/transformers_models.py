"""Architectures of transformers: the default configuration of each, made tiny."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

import zoo.catalog.torchvision_operators  # noqa: F401 (defines them before the first import)
from zoo.network import Architecture, Input, Network

PRELOAD = ("transformers", "transformers.modeling_utils", "transformers.models.auto.modeling_auto")

ENCODERS = (
    "bert roberta albert distilbert electra deberta deberta-v2 camembert xlm-roberta mpnet "
    "mobilebert squeezebert convbert funnel fnet roformer rembert nystromformer yoso ibert "
    "big_bird canine ernie layoutlm lilt luke megatron-bert mra xlnet xlm flaubert modernbert "
    "splinter esm data2vec-text roc_bert xmod markuplm longformer bros eurobert xlm-roberta-xl "
    "nomic_bert jina_embeddings_v3"
).split()
DECODERS = (
    "gpt2 gpt_neo gpt_neox gptj opt bloom codegen llama mistral mixtral qwen2 qwen3 qwen2_moe "
    "qwen3_moe phi phi3 phimoe gemma gemma2 gemma3_text falcon mpt stablelm starcoder2 olmo olmo2 "
    "olmoe cohere cohere2 granite granitemoe persimmon dbrx deepseek_v2 deepseek_v3 glm glm4 "
    "nemotron smollm3 helium exaone4 mamba mamba2 rwkv recurrent_gemma xglm biogpt ctrl openai-gpt "
    "gpt_bigcode jamba lfm2 ernie4_5 hunyuan_v1_dense gpt_oss arcee bamba falcon_mamba jetmoe "
    "gpt_neox_japanese bitnet apertus seed_oss diffllama ernie4_5_moe dots1 minimax"
).split()
CACHED = (
    "gpt2 gpt_neo gpt_neox gptj opt bloom codegen llama mistral mixtral qwen2 qwen3 phi phi3 gemma "
    "gemma2 falcon mpt stablelm starcoder2 olmo2 cohere granite persimmon glm smollm3 biogpt xglm"
).split()
SEQ2SEQ = (
    "t5 mt5 umt5 longt5 switch_transformers bart mbart pegasus pegasus_x marian blenderbot "
    "blenderbot-small m2m_100 led prophetnet fsmt nllb-moe bigbird_pegasus plbart mvp"
).split()
VISION = (
    "vit deit beit swin swinv2 convnext convnextv2 dinov2 dinov2_with_registers dinov3_vit vit_mae "
    "vit_msn segformer poolformer regnet resnet mobilenet_v1 mobilenet_v2 mobilevit mobilevitv2 "
    "efficientnet bit cvt focalnet pvt pvt_v2 levit dpt glpn yolos swiftformer hiera ijepa "
    "data2vec-vision swin2sr textnet depth_anything upernet superpoint dinat vitdet"
).split()
VIDEO = ("timesformer", "videomae", "vivit", "vjepa2")
WAVES = (
    "wav2vec2 hubert wavlm unispeech unispeech-sat sew sew-d data2vec-audio wav2vec2-conformer"
).split()
SPECTRA = {
    "wav2vec2-bert": (1, 20, 160),
    "audio-spectrogram-transformer": (1, 48, 32),
}
SPEECH_SEQ2SEQ = {"whisper": (1, 16, 40), "speech_to_text": (1, 40, 16)}
CONTRASTIVE = (
    "clip siglip siglip2 altclip chinese_clip blip groupvit clipseg owlvit flava vilt bridgetower "
    "metaclip_2 align"
).split()

# Their layers differ in kind, or share weights.
_TWO_LAYERS = frozenset(
    "albert gemma2 gemma3_text cohere2 gpt_neo jamba bamba recurrent_gemma lfm2 gpt_oss exaone4 "
    "modernbert minimax deepseek_v2 deepseek_v3 dots1 ernie4_5_moe switch_transformers nllb-moe "
    "smollm3 xlm-roberta llama".split()
)
_LAYERS = (
    "num_hidden_layers n_layer num_layers n_layers encoder_layers decoder_layers "
    "num_encoder_layers num_decoder_layers num_blocks"
).split()
_TINY: dict[str, Any] = {
    **dict.fromkeys(
        "hidden_size d_model n_embd dim d_embed embed_dim encoder_hidden_size".split(), 32
    ),
    **dict.fromkeys("word_embed_proj_dim decoder_hidden_size conv_dim_out".split(), 32),
    **dict.fromkeys(_LAYERS, 1),
    **dict.fromkeys(
        "num_attention_heads n_head n_heads num_heads encoder_attention_heads "
        "decoder_attention_heads num_encoder_attention_heads num_decoder_attention_heads".split(),
        4,
    ),
    **dict.fromkeys("num_key_value_heads num_kv_heads multi_query_group_num".split(), 2),
    **dict.fromkeys(
        "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff d_inner n_inner "
        "ffn_hidden_size hidden_dim encoder_intermediate_size shared_expert_intermediate_size "
        "decoder_intermediate_size dim_feedforward".split(),
        64,
    ),
    **dict.fromkeys("moe_intermediate_size expert_dim lru_width".split(), 32),
    **dict.fromkeys("d_kv head_dim attention_head_size qk_nope_head_dim v_head_dim".split(), 8),
    **dict.fromkeys("num_local_experts num_experts n_routed_experts moe_num_experts".split(), 4),
    **dict.fromkeys("num_experts_per_tok moe_k moe_top_k".split(), 2),
    **dict.fromkeys("vocab_size text_vocab_size encoder_vocab_size decoder_vocab_size".split(), 99),
    **dict.fromkeys("max_position_embeddings n_positions n_ctx seq_length".split(), 64),
    "max_seq_len": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "embedding_size": 16,
    "image_size": 32,
    "patch_size": 8,
    "num_channels": 3,
    "projection_dim": 16,
    "qk_rope_head_dim": 8,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
    "rotary_dim": 4,
    "time_step_rank": 4,
    "state_size": 8,
    "num_mel_bins": 16,
    "max_source_positions": 64,
    "max_target_positions": 64,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "sliding_window": 8,
}

# What the rule above does not get right.
_OVERRIDES: dict[str, dict[str, Any]] = {
    "nemotron": {"num_key_value_heads": 4, "head_dim": 8},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1, "state_size": 8},
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8},
    "hunyuan_v1_dense": {"head_dim": 8},
    "xmod": {"default_language": "en_XX"},
    "esm": {"vocab_size": 99, "mask_token_id": 32, "position_embedding_type": "rotary"},
    "bit": {"hidden_sizes": [32, 64, 64, 64], "embedding_size": 32, "depths": [1, 1, 1, 1]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    "swin": {
        "embed_dim": 16,
        "depths": [1, 1],
        "num_heads": [2, 2],
        "window_size": 2,
        "patch_size": 2,
    },
    "swinv2": {
        "embed_dim": 16,
        "depths": [1, 1],
        "num_heads": [2, 2],
        "window_size": 2,
        "patch_size": 2,
    },
    "swin2sr": {
        "embed_dim": 16,
        "depths": [1, 1],
        "num_heads": [2, 2],
        "window_size": 4,
        "patch_size": 1,
    },
    "segformer": {
        "image_size": 64,
        "depths": [1, 1, 1, 1],
        "hidden_sizes": [16, 16, 32, 32],
        "num_attention_heads": [1, 1, 2, 2],
        "decoder_hidden_size": 32,
    },
    "levit": {"image_size": 64, "patch_size": 16},
    "mobilevit": {
        "image_size": 64,
        "patch_size": 2,
        "hidden_sizes": [16, 24, 32],
        "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 64],
    },
    "mobilevitv2": {"image_size": 64, "patch_size": 2},
    "focalnet": {
        "embed_dim": 16,
        "hidden_sizes": [16, 32, 64, 128],
        "depths": [1, 1, 1, 1],
        "patch_size": 4,
        "image_size": 64,
    },
    "poolformer": {"depths": [1, 1, 1, 1], "image_size": 64, "patch_size": 7},
    "convnext": {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 24, 32, 48], "patch_size": 4},
    "convnextv2": {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 24, 32, 48], "patch_size": 4},
    "regnet": {
        "depths": [1, 1, 1, 1],
        "hidden_sizes": [16, 24, 32, 48],
        "embedding_size": 16,
        "groups_width": 8,
    },
    "resnet": {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 24, 32, 48], "embedding_size": 16},
    "efficientnet": {
        "image_size": 64,
        "hidden_dim": 640,
        "width_coefficient": 0.5,
        "depth_coefficient": 0.5,
    },
    "xlnet": {"d_head": 8},
    "funnel": {"block_sizes": [1, 1], "block_repeats": [1, 1], "d_head": 8},
    "squeezebert": {"embedding_size": 32},
    "longformer": {"attention_window": [4, 4]},
    "led": {"attention_window": [4, 4]},
    "falcon": {"num_kv_heads": 4},
    "mobilebert": {"embedding_size": 32, "intra_bottleneck_size": 32, "true_hidden_size": 32},
    "wav2vec2-bert": {"feature_projection_input_dim": 160},
    "audio-spectrogram-transformer": {"max_length": 48, "num_mel_bins": 32},
    "pvt_v2": {
        "image_size": 64,
        "hidden_sizes": [16, 16, 32, 32],
        "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 1, 2, 2],
    },
    "pvt": {"image_size": 64, "hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1]},
    "dpt": {
        "neck_hidden_sizes": [16, 16, 16, 16],
        "num_hidden_layers": 4,
        "backbone_out_indices": [0, 1, 2, 3],
        "fusion_hidden_size": 16,
        "image_size": 64,
        "patch_size": 16,
        "backbone_featmap_shape": [1, 32, 4, 4],
    },
    "glpn": {
        "depths": [1, 1, 1, 1],
        "hidden_sizes": [16, 16, 32, 32],
        "num_attention_heads": [1, 1, 2, 2],
        "image_size": 64,
        "patch_size": 4,
        "decoder_hidden_size": 16,
    },
    "textnet": {"image_size": 64},
    "vivit": {"tubelet_size": [2, 8, 8], "num_frames": 4},
    "videomae": {"num_frames": 4, "tubelet_size": 2},
    "timesformer": {"num_frames": 4},
    "whisper": {"num_mel_bins": 16, "max_source_positions": 20},
    "hiera": {
        "image_size": [64, 64],
        "embed_dim": 16,
        "depths": [1, 1],
        "num_heads": [1, 2],
        "query_stride": [2, 2],
        "num_query_pool": 1,
        "masked_unit_size": [4, 4],
        "patch_size": [7, 7],
    },
}

_AUTO = {
    "encoder": "AutoModel",
    "decoder": "AutoModelForCausalLM",
    "cached": "AutoModelForCausalLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "image": "AutoModel",
    "video": "AutoModel",
    "wave": "AutoModel",
    "spectrum": "AutoModel",
    "speech": "AutoModelForSpeechSeq2Seq",
    "pair": "AutoModel",
}


# What follows from the number of layers, or is float32 anyway.
_FOLLOWING = frozenset(
    "layer_types attention_layers layers_block_type dtype torch_dtype out_features out_indices "
    "stage_names".split()
)


def _shrink(data: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration's values with every size made tiny, those of its parts too."""
    small: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, dict) and name.endswith("_config"):
            small[name] = _shrink(value)
        elif name in _FOLLOWING:
            continue
        elif name in _TINY and (value is None or isinstance(value, int)) and value is not False:
            small[name] = _TINY[name] if value is not None or name.endswith("_id") else None
        else:
            small[name] = value
    return small


def _make_config(model_type: str) -> Any:
    from transformers import AutoConfig

    default = AutoConfig.for_model(model_type)
    small = _shrink(default.to_dict())
    if model_type in _TWO_LAYERS:
        small |= dict.fromkeys((name for name in _LAYERS if name in small), 2)
    small |= _OVERRIDES.get(model_type, {})
    small.pop("model_type", None)
    for name in ("use_mamba_kernels", "use_mambapy"):
        if name in small:
            small[name] = False
    return type(default)(**small)


class _Flat(nn.Module):
    """A model that takes its inputs in order and gives its tensors in a tuple."""

    def __init__(self, module: nn.Module, names: list[str], layers: int = 0) -> None:
        super().__init__()
        self.module, self.names, self.layers = module, names, layers

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        named = dict(zip(self.names, values, strict=False))
        if not self.layers:
            found = self.module(**named, return_dict=True)
            return tuple(_tensors(found))
        cache = self._cache(values[len(self.names) :])
        found = self.module(**named, past_key_values=cache, use_cache=True, return_dict=True)
        return (found.logits, *_states(found.past_key_values))

    def _cache(self, values: tuple[torch.Tensor, ...]) -> Any:
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer in range(self.layers):
            cache.update(values[2 * layer], values[2 * layer + 1], layer)
        return cache


def _tensors(found: Any) -> list[torch.Tensor]:
    """Return all float tensors of an output, those in nested outputs too, each once."""
    if isinstance(found, torch.Tensor):
        return [found] if found.is_floating_point() and found.dim() else []
    if hasattr(found, "to_tuple"):
        found = [v for k, v in found.items() if k != "past_key_values"]
    if isinstance(found, (tuple, list)):
        kept: list[torch.Tensor] = []
        for part in found:
            kept += [t for t in _tensors(part) if all(t is not other for other in kept)]
        return kept
    return []


def _states(cache: Any) -> list[torch.Tensor]:
    if hasattr(cache, "layers"):
        return [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    if hasattr(cache, "key_cache"):
        return [t for pair in zip(cache.key_cache, cache.value_cache, strict=True) for t in pair]
    return [tensor for layer in cache for tensor in layer]


def _tokens(length: int = 6, name: str = "input_ids") -> Input:
    return Input(name, (1, length), "tokens", 99, dynamic=(1,))


def _inputs(model_type: str, kind: str, config: Any) -> tuple[Input, ...]:
    mask = Input("attention_mask", (1, 6), "ones", dynamic=(1,))
    size = getattr(config, "image_size", None) or 64
    size = size[0] if isinstance(size, (list, tuple)) else size
    vision = getattr(config, "vision_config", None)
    if vision is not None:
        size = getattr(vision, "image_size", 32)
    size = {"levit": 64, "cvt": 64, "superpoint": 64, "bit": 64, "upernet": 64}.get(
        model_type, size
    )
    pixels = Input("pixel_values", (1, 3, size, size))
    match kind:
        case "encoder" | "decoder":
            if model_type in {"fnet", "mamba", "falcon_mamba", "rwkv", "recurrent_gemma"}:
                return (_tokens(),)
            return (_tokens(), mask)
        case "seq2seq":
            return (_tokens(), mask, _tokens(4, "decoder_input_ids"))
        case "image":
            return (pixels,)
        case "video":
            frames = getattr(config, "num_frames", None) or 4
            name = "pixel_values_videos" if model_type == "vjepa2" else "pixel_values"
            return (Input(name, (1, frames, 3, size, size)),)
        case "wave":
            return (Input("input_values", (1, 1600), dynamic=(1,)),)
        case "spectrum":
            name = "input_values" if model_type.startswith("audio") else "input_features"
            return (Input(name, SPECTRA[model_type]),)
        case "speech":
            features = Input("input_features", SPEECH_SEQ2SEQ[model_type])
            return (features, _tokens(4, "decoder_input_ids"))
        case "pair":
            return (_tokens(), pixels, mask)
    raise ValueError(kind)


def build_model(model_type: str, kind: str) -> Network:
    """Return a tiny model of a type, which takes what its kind takes."""
    import transformers

    config = _make_config(model_type)
    config._attn_implementation = "eager"
    config.return_loss = False
    auto = getattr(transformers, _AUTO[kind])
    module = auto.from_config(config, attn_implementation="eager").float().eval()
    if kind == "cached":
        return _with_cache(module, config)
    config.use_cache = False
    if hasattr(module.config, "use_cache"):
        module.config.use_cache = False
    inputs = _inputs(model_type, kind, config)
    return Network(_Flat(module, [one.name for one in inputs]), inputs)


def _with_cache(module: nn.Module, config: Any) -> Network:
    """One step of a decoder: a token, and the keys and values of the five before it."""
    layers, past = config.num_hidden_layers, 5
    with torch.no_grad():
        ids = torch.zeros(1, past, dtype=torch.int64)
        states = _states(module(input_ids=ids, use_cache=True, return_dict=True).past_key_values)
    named = (
        _tokens(1),
        Input("attention_mask", (1, past + 1), "ones", dynamic=(1,)),
    )
    caches = tuple(
        Input(f"past_{part}_{layer}", tuple(states[2 * layer + index].shape), dynamic=(2,))
        for layer in range(layers)
        for index, part in enumerate(("key", "value"))
    )
    flat = _Flat(module, [one.name for one in named], layers)
    return Network(
        flat, (Input("input_ids", (1, 1), "tokens", 99, dynamic=()), *named[1:], *caches)
    )


KINDS = {
    "encoder": ENCODERS,
    "decoder": DECODERS,
    "cached": CACHED,
    "seq2seq": SEQ2SEQ,
    "image": VISION,
    "video": VIDEO,
    "wave": WAVES,
    "spectrum": tuple(SPECTRA),
    "speech": tuple(SPEECH_SEQ2SEQ),
    "pair": CONTRASTIVE,
}


def architectures() -> list[Architecture]:
    """Return every model type of the lists, decoders also with their caches as inputs."""
    return [
        Architecture(
            f"transformers/{name}{'-cached' if kind == 'cached' else ''}",
            partial(build_model, name, kind),
        )
        for kind, names in KINDS.items()
        for name in names
    ]
