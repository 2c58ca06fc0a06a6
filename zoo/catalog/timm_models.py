"""Architectures of timm: the smallest of each family, shallow and on small images."""

from __future__ import annotations

from fnmatch import fnmatch
from functools import partial
from typing import Any

import zoo.catalog.torchvision_operators  # noqa: F401 (defines them before the first import)
from zoo.network import Architecture, Input, Network

PRELOAD = ("timm",)

NAMES = (
    "beit_base_patch16_224 beitv2_base_patch16_224 botnet26t_256 eca_botnext26ts_256 halonet26t "
    "eca_halonext26ts lambda_resnet26t sebotnet33ts_256 bat_resnext26ts eca_resnext26ts "
    "gcresnext26ts gernet_s mobileone_s0 regnetz_b16 repvgg_a0 resnet32ts resnet50_clip "
    "cait_xxs24_224 coat_lite_tiny coat_tiny convit_tiny convmixer_768_32 convnext_atto "
    "convnext_atto_ols convnext_zepto_rms convnextv2_atto test_convnext test_convnext2 "
    "test_convnext3 cpubone_nano crossvit_tiny_240 crossvit_9_dagger_240 csatv2 "
    "cs3darknet_focus_s cs3darknet_s cspresnet50 cspdarknet53 darknet17 sedarknet21 davit_tiny "
    "deit3_small_patch16_224 deit_tiny_patch16_224 deit_tiny_distilled_patch16_224 densenet121 "
    "densenetblur121d dla34 dla46_c dla46x_c dla60_res2net dpn48b dpn68 edgenext_xx_small "
    "edgenext_x_small efficientformer_l1 efficientformerv2_s0 efficientnet_b0 efficientnet_b0_gn "
    "efficientnet_cc_b0_4e efficientnet_es efficientnet_lite0 efficientnet_blur_b0 "
    "tf_efficientnet_b0 tf_efficientnetv2_b0 mnasnet_050 mnasnet_small semnasnet_075 "
    "mobilenetv2_035 mobilenetv2_050 fbnetc_100 spnasnet_100 tinynet_e mixnet_s tf_mixnet_s "
    "mobilenetv1_100 test_efficientnet test_efficientnet_gn test_efficientnet_ln "
    "test_efficientnet_evos efficientvim_m1 efficientvit_b0 efficientvit_m0 "
    "eva02_tiny_patch14_224 vit_small_patch16_rope_224 vit_small_patch16_dinov3 fasternet_t0 "
    "fastvit_t8 fastvit_mci0 focalnet_tiny_srf gcvit_xxtiny ghostnet_050 ghostnetv2_100 "
    "ghostnetv3_050 hardcorenas_a hgnet_tiny hgnetv2_b0 hiera_tiny_224 hieradet_small "
    "hrnet_w18_small iformer_t inception_next_atto inception_resnet_v2 inception_v3 inception_v4 "
    "lcnetv2_small levit_128s levit_conv_128s lowformer_b0 mambaout_femto test_mambaout "
    "coatnet_nano_rw_224 coatnet_pico_rw_224 maxvit_pico_rw_256 maxvit_rmlp_pico_rw_256 "
    "maxxvit_rmlp_nano_rw_256 coatnext_nano_rw_224 caformer_s18 convformer_s18 poolformer_s12 "
    "poolformerv2_s12 gmixer_12_224 gmlp_ti16_224 mixer_s32_224 resmlp_12_224 fbnetv3_b lcnet_035 "
    "lcnet_050 mobilenetv3_small_050 mobilenetv3_rw mobilenetv4_conv_small_035 "
    "mobilenetv4_conv_small mobilenetv4_hybrid_medium_075 tf_mobilenetv3_small_minimal_100 "
    "mobilenetv5_base mobilevit_xxs mobilevitv2_050 mvitv2_tiny naflexvit_base_patch16_gap "
    "nest_tiny nextvit_small nf_regnet_b0 nf_resnet26 nf_seresnet26 eca_nfnet_l0 test_nfnet "
    "pit_ti_224 pit_xs_distilled_224 pvt_v2_b0 pvt_v2_b2_li rdnet_tiny regnetx_002 regnety_002 "
    "regnetz_005 repghostnet_050 repvit_m0_9 repvit_m1 res2net50_14w_8s res2next50 resnest14d "
    "resnet10t resnet14t resnet18 resnet18d resnet26t resnetblur18 ecaresnet26t seresnet18 "
    "seresnext26ts ecaresnetlight skresnet18 resnetaa34d test_resnet resnetv2_18 "
    "resnetv2_50x1_bit resnetv2_50d_frn resnetv2_50d_gn rexnet_100 rexnetr_100 selecsls42 "
    "legacy_seresnet18 legacy_seresnext26_32x4d sequencer2d_s shvit_s1 starnet_s050 "
    "swiftformer_xs swin_tiny_patch4_window7_224 swin_s3_tiny_224 swinv2_tiny_window8_256 "
    "swinv2_cr_tiny_224 tiny_vit_5m_224 tnt_s_patch16_224 tresnet_m twins_pcpvt_small "
    "twins_svt_small visformer_tiny flexivit_small test_vit test_vit2 test_vit3 test_vit4 "
    "vit_tiny_patch16_224 vit_small_patch14_dinov2 vit_tiny_r_s16_p8_224 "
    "vit_relpos_small_patch16_224 vit_srelpos_small_patch16_224 samvit_base_patch16_224 "
    "vitamin_small_224 volo_d1_224 ese_vovnet19b_slim ese_vovnet19b_slim_dw eca_vovnet39b "
    "legacy_xception xception41 xcit_nano_12_p16_224 xcit_tiny_12_p8_224"
).split()

# Pattern -> options that make it small. The last pattern that fits is taken.
_OPTIONS: dict[str, dict[str, Any]] = {
    "beit*": {"img_size": 64, "depth": 2, "embed_dim": 48, "num_heads": 4},
    "cait*": {"img_size": 64, "depth": 2},
    "convit*": {"img_size": 64, "depth": 3},
    "convmixer*": {"dim": 64, "depth": 3},
    "deit*": {"img_size": 64, "depth": 2, "embed_dim": 48, "num_heads": 4},
    "eva02*": {"img_size": 56, "depth": 2},
    "flexivit*": {"img_size": 64, "depth": 2},
    "gmixer*": {"img_size": 64},
    "gmlp*": {"img_size": 64},
    "mixer*": {"img_size": 64},
    "resmlp*": {"img_size": 64},
    "naflexvit*": {"depth": 2, "embed_dim": 48, "num_heads": 4},
    "samvit*": {
        "img_size": 64,
        "depth": 2,
        "embed_dim": 48,
        "num_heads": 4,
        "global_attn_indexes": [1],
    },
    "swin*": {"img_size": 64, "window_size": 4, "depths": (1, 1, 1, 1)},
    "swin_s3*": {"img_size": 64, "window_size": (4, 4, 4, 2), "depths": (1, 1, 1, 1)},
    "tnt*": {"img_size": 64, "depth": 2},
    "test_vit*": {"img_size": 64},
    "vit_*": {"img_size": 64, "depth": 2},
    "vit_tiny_r*": {"img_size": 64, "depth": 2},
    "vit_*dinov2": {"img_size": 56, "depth": 2},
    "xcit*": {"img_size": 64, "depth": 2},
    "coat_*": {"img_size": 64},
    "crossvit*": {},
    "volo*": {"img_size": 64},
    "hiera_*": {"img_size": 64},
    "hieradet*": {},
    "maxvit*": {"img_size": 64},
    "maxxvit*": {"img_size": 64},
    "coatn*": {"img_size": 64},
    "mvitv2*": {"img_size": 64},
    "levit*": {},
    "nest*": {"img_size": 64},
    "twins*": {"img_size": 64},
    "visformer*": {"img_size": 64},
    "pit*": {"img_size": 64},
    "focalnet*": {},
    "gcvit*": {"img_size": 64, "window_size": (2, 2, 4, 2)},
    "davit*": {"depths": (1, 1, 1, 1)},
    "sequencer2d*": {"img_size": 64, "layers": (1, 1, 1, 1)},
    "convnext_*": {"depths": (1, 1, 1, 1)},
    "convnextv2*": {"depths": (1, 1, 1, 1)},
    "caformer*": {"depths": (1, 1, 1, 1)},
    "convformer*": {"depths": (1, 1, 1, 1)},
    "poolformer*": {"layers": (1, 1, 1, 1)},
    "poolformerv2*": {"layers": (1, 1, 1, 1)},
    "pvt_v2*": {"depths": (1, 1, 1, 1)},
}
# Networks that were made for one size of image, or need a larger one.
_SIZES = {
    "eva02*": 56,
    "vit_*dinov2": 56,
    "botnet*": 256,
    "*botnext*": 256,
    "sebotnet*": 256,
    "halonet*": 128,
    "*halonext*": 128,
    "crossvit*": 240,
    "levit*": 224,
    "hieradet*": 256,
    "inception*": 96,
    "efficientformer_l1": 224,
    "efficientformerv2*": 224,
    "efficientvit_m0": 224,
    "tiny_vit*": 224,
    "vitamin*": 224,
    "swiftformer*": 64,
    "csatv2": 128,
    "legacy_xception": 96,
}


def _fitting(table: dict[str, Any], name: str, default: Any) -> Any:
    found = [value for pattern, value in table.items() if fnmatch(name, pattern)]
    return found[-1] if found else default


def _build(name: str) -> Network:
    import timm
    from timm.layers import set_fused_attn

    set_fused_attn(enable=False)
    module = timm.create_model(name, num_classes=10, **_fitting(_OPTIONS, name, {}))
    size = _fitting(_SIZES, name, 64)
    return Network(module, (Input("image", (1, 3, size, size)),))


def architectures() -> list[Architecture]:
    """Return every network of the list."""
    return [Architecture(f"timm/{name}", partial(_build, name)) for name in NAMES]
