#!/usr/bin/env python3
"""Writes the released checkpoint layout without its weights.

96 shards, 497,220 tensors, real headers, every payload a hole of the file system: 1.56 TB apparent,
under 200 MB on disk. Written from the description of the release alone and on purpose without a line
of the program it tests: names, shapes and byte counts are a second opinion, and the sums that the
release states are checked while it is written.

Tensors lie in the order of the safetensors writer (widest type first, then by name as text) under a
header without __metadata__, padded to 8 bytes. With that order every stated file size comes out to
the byte, and the sum of all 96 too; with __metadata__ or in another order it does not.

    make_sparse.py DIR          about five seconds

Small files are structurally right (config, index, tokenizer of 163,584 dense ranks) but carry no
trained content.
"""
import base64
import json
import os
import struct
import sys

HIDDEN, LAYERS, VOCAB = 7168, 93, 163840
HEADS, HEAD_DIM, CONV = 96, 128, 4
Q_RANK, KV_RANK, NOPE, ROPE, V_DIM = 1536, 512, 128, 64, 128
DENSE, EXPERTS, WIDTH, LATENT, SHARED = 33792, 896, 3072, 3584, 2 * 3072
KDA_DIM = HEADS * HEAD_DIM
MLA_LAYERS = [l for l in range(LAYERS) if l % 4 == 3 or l == LAYERS - 1]

BYTES = {"F32": 4, "BF16": 2, "U8": 1}

# What the release states: payload bytes by kind of shard, and tensors by kind.
STATED = {"dense+kda": (2_341_213_184, 23), "moe+kda": (16_990_092_800, 5404),
          "moe+mla": (16_566_684_160, 5398), "globals": (4_697_663_488, 5),
          "projector": (92_289_024, 3), "tower": (802_428_928, 165)}
STATED_TOTAL, STATED_TENSORS = 1_560_860_324_864, 497_220
STATED_FILES = {1: 2_341_216_112, 51: 16_990_916_912, 95: 92_289_328, 96: 802_448_352}
STATED_FILES_TOTAL = 1_560_936_091_448


def bf16(name, *shape):
    return name, "BF16", list(shape)


def f32(name, *shape):
    return name, "F32", list(shape)


def attention(kda):
    if not kda:
        return [
            bf16("q_a_proj.weight", Q_RANK, HIDDEN),
            bf16("q_a_layernorm.weight", Q_RANK),
            bf16("q_b_proj.weight", HEADS * (NOPE + ROPE), Q_RANK),
            bf16("kv_a_proj_with_mqa.weight", KV_RANK + ROPE, HIDDEN),
            bf16("kv_a_layernorm.weight", KV_RANK),
            bf16("kv_b_proj.weight", HEADS * (NOPE + V_DIM), KV_RANK),
            bf16("g_proj.weight", HEADS * V_DIM, HIDDEN),
            bf16("o_proj.weight", HIDDEN, HEADS * V_DIM),
        ]
    tensors = []
    for x in "qkv":
        tensors.append(bf16(f"{x}_proj.weight", KDA_DIM, HIDDEN))
        tensors.append(f32(f"{x}_conv1d.weight", KDA_DIM, 1, CONV))
    return tensors + [
        bf16("f_a_proj.weight", HEAD_DIM, HIDDEN),
        bf16("f_b_proj.weight", KDA_DIM, HEAD_DIM),
        f32("A_log", HEAD_DIM),  # 96 heads, stored with 128 entries
        f32("dt_bias", KDA_DIM),
        bf16("b_proj.weight", HEADS, HIDDEN),
        bf16("g_proj.weight", KDA_DIM, HIDDEN),
        f32("o_norm.weight", HEAD_DIM),
        bf16("o_proj.weight", HIDDEN, KDA_DIM),
    ]


def expert(e):
    tensors = []
    for mat, rows, cols in (("w1", WIDTH, LATENT), ("w2", LATENT, WIDTH), ("w3", WIDTH, LATENT)):
        tensors.append((f"experts.{e}.{mat}.weight_packed", "U8", [rows, cols // 2]))
        tensors.append((f"experts.{e}.{mat}.weight_scale", "U8", [rows, cols // 32]))
    return tensors


def feed_forward(dense):
    if dense:
        return [bf16("mlp.gate_proj.weight", DENSE, HIDDEN),
                bf16("mlp.up_proj.weight", DENSE, HIDDEN),
                bf16("mlp.down_proj.weight", HIDDEN, DENSE)]
    moe = [
        bf16("gate.weight", EXPERTS, HIDDEN),
        f32("gate.e_score_correction_bias", EXPERTS),
        bf16("routed_expert_down_proj.weight", LATENT, HIDDEN),
        bf16("routed_expert_norm.weight", LATENT),
        bf16("routed_expert_up_proj.weight", HIDDEN, LATENT),
        bf16("shared_experts.gate_proj.weight", SHARED, HIDDEN),
        bf16("shared_experts.up_proj.weight", SHARED, HIDDEN),
        bf16("shared_experts.down_proj.weight", HIDDEN, SHARED),
    ]
    # Sorting by name as text (write_shard) keeps an expert's six tensors together and puts the
    # experts in the order 0, 1, 10, 100, ...: not by id, as in the release.
    for e in range(EXPERTS):
        moe += expert(e)
    return [("block_sparse_moe." + n, d, s) for n, d, s in moe]


def layer(l):
    kda, dense = l not in MLA_LAYERS, l == 0
    tensors = [
        bf16("self_attention_res_norm.weight", HIDDEN),
        bf16("self_attention_res_proj.weight", 1, HIDDEN),
        bf16("mlp_res_norm.weight", HIDDEN),
        bf16("mlp_res_proj.weight", 1, HIDDEN),
        bf16("input_layernorm.weight", HIDDEN),
        bf16("post_attention_layernorm.weight", HIDDEN),
    ]
    tensors += [("self_attn." + n, d, s) for n, d, s in attention(kda)]
    tensors += feed_forward(dense)
    kind = ("dense+" if dense else "moe+") + ("kda" if kda else "mla")
    prefix = f"language_model.model.layers.{l}."
    return kind, [(prefix + n, d, s) for n, d, s in tensors]


def global_tensors():
    return "globals", [
        bf16("language_model.model.embed_tokens.weight", VOCAB, HIDDEN),
        bf16("language_model.lm_head.weight", VOCAB, HIDDEN),
        bf16("language_model.model.norm.weight", HIDDEN),
        bf16("language_model.model.output_attn_res_norm.weight", HIDDEN),
        bf16("language_model.model.output_attn_res_proj.weight", 1, HIDDEN),
    ]


def projector():
    return "projector", [bf16("mm_projector.proj.0.weight", 4096, 4096),
                         bf16("mm_projector.proj.2.weight", HIDDEN, 4096),
                         bf16("mm_projector.post_norm.weight", HIDDEN)]


def tower():
    tensors = [bf16("patch_embed.proj.weight", 1024, 3, 14, 14),
               bf16("patch_embed.pos_emb.weight", 64, 64, 1024)]
    for i in range(27):
        b = f"encoder.blocks.{i}."
        tensors += [bf16(b + "norm0.weight", 1024), bf16(b + "norm1.weight", 1024),
                    bf16(b + "wqkv.weight", 4608, 1024), bf16(b + "wo.weight", 1024, 1536),
                    bf16(b + "mlp.fc0.weight", 4096, 1024), bf16(b + "mlp.fc1.weight", 1024, 4096)]
    tensors.append(bf16("encoder.final_layernorm.weight", 1024))
    return "tower", [("vision_tower." + n, d, s) for n, d, s in tensors]


def shards():
    for l in range(LAYERS):
        yield layer(l)
    yield global_tensors()
    yield projector()
    yield tower()


def write_shard(path, tensors):
    header, at = {}, 0
    for name, dtype, shape in sorted(tensors, key=lambda t: (-BYTES[t[1]], t[0])):
        size = BYTES[dtype]
        for n in shape:
            size *= n
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + at)  # a hole
    return at, 8 + len(text) + at


def config():
    text = {
        "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "dtype": "bfloat16",
        "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "vocab_size": VOCAB,
        "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "rms_norm_eps": 1e-05,
        "intermediate_size": DENSE, "hidden_act": "situ", "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0, "attn_res_block_size": 12,
        "max_position_embeddings": 1048576, "q_lora_rank": Q_RANK, "kv_lora_rank": KV_RANK,
        "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE, "v_head_dim": V_DIM,
        "mla_use_nope": True, "mla_use_output_gate": True, "first_k_dense_replace": 1,
        "moe_layer_freq": 1, "num_experts": EXPERTS, "num_experts_per_token": 16,
        "num_shared_experts": 2, "moe_intermediate_size": WIDTH,
        "routed_expert_hidden_size": LATENT, "latent_moe_use_norm": True, "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid", "routed_scaling_factor": 1.0,
        "num_expert_group": 1, "topk_group": 1, "use_grouped_topk": True, "topk_method": "noaux_tc",
        "num_nextn_predict_layers": 0, "tie_word_embeddings": False, "initializer_range": 0.02,
        "bos_token_id": 163584, "eos_token_id": 163586, "pad_token_id": 163839,
        "linear_attn_config": {
            "num_heads": HEADS, "head_dim": HEAD_DIM, "short_conv_kernel_size": CONV,
            "gate_lower_bound": -5.0, "use_full_rank_gate": True,
            "full_attn_layers": [l + 1 for l in MLA_LAYERS],
            "kda_layers": [l + 1 for l in range(LAYERS) if l not in MLA_LAYERS],
        },
        "quantization_config": {
            "quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
            "quantization_status": "compressed", "kv_cache_scheme": None,
            "config_groups": {"group_0": {
                "targets": ["Linear"], "input_activations": None, "output_activations": None,
                "weights": {"num_bits": 4, "type": "float", "group_size": 32, "strategy": "group",
                            "symmetric": True, "dynamic": False, "scale_dtype": "torch.uint8",
                            "actorder": None, "observer": "minmax"}}},
            "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*",
                       "re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "re:.*lm_head.*",
                       "re:.*vision_tower.*", "re:.*mm_projector.*"],
        },
    }
    vision = {
        "patch_size": 14, "vt_num_attention_heads": 12, "vt_num_hidden_layers": 27,
        "vt_hidden_size": 1024, "vt_intermediate_size": 4096, "qkv_hidden_size": 1536,
        "merge_kernel_size": [2, 2], "mm_hidden_size": 1024, "text_hidden_size": HIDDEN,
    }
    return {
        "architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3",
        "dtype": "bfloat16", "bos_token_id": 163584, "eos_token_id": 163586,
        "pad_token_id": 163839, "media_placeholder_token_id": 163605, "ignore_index": -100,
        "image_placeholder": "<|kimi_image_placeholder|>", "tie_word_embeddings": False,
        "text_config": text, "vision_config": vision,
    }


def tokenizer_config():
    named = {163584: "[BOS]", 163585: "[EOS]", 163586: "<|end_of_msg|>", 163587: "<|open|>",
             163588: "<|close|>", 163589: "<|sep|>", 163590: "[start_header_id]",
             163591: "[end_header_id]", 163593: "[EOT]", 163602: "<|media_begin|>",
             163603: "<|media_content|>", 163604: "<|media_end|>", 163605: "<|media_pad|>",
             163649: "<osagent_mode>", 163838: "[UNK]", 163839: "[PAD]"}
    plain = {163587, 163588, 163589}
    return {
        "added_tokens_decoder": {str(i): {
            "content": name, "lstrip": False, "normalized": False, "rstrip": False,
            "single_word": False, "special": i not in plain} for i, name in named.items()},
        "additional_special_tokens": ["<|end_of_msg|>"], "bos_token": "[BOS]",
        "clean_up_tokenization_spaces": False, "eos_token": "[EOS]", "pad_token": "[PAD]",
        "unk_token": "[UNK]", "tokenizer_class": "TikTokenTokenizer",
    }


def tiktoken_lines():
    """All single bytes, all pairs, then triples: 163,584 distinct strings, each a merge of two."""
    rank = 0
    for width in (1, 2, 3):
        for n in range(256 ** width):
            if rank == 163584:
                return
            yield base64.b64encode(n.to_bytes(width, "big")) + b" %d\n" % rank
            rank += 1


def write_json(path, value, indent=None):
    with open(path, "w") as f:
        json.dump(value, f, indent=indent)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: make_sparse.py DIR")
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    weight_map, total, file_total = {}, 0, 0
    for number, (kind, tensors) in enumerate(shards(), 1):
        name = f"model-{number:05d}-of-000096.safetensors"
        payload, size = write_shard(os.path.join(out, name), tensors)
        assert (payload, len(tensors)) == STATED[kind], (name, kind, payload, len(tensors))
        assert size == STATED_FILES.get(number, size), (name, size)
        total += payload
        file_total += size
        for tensor, _, _ in tensors:
            weight_map[tensor] = name
    assert number == 96 and len(weight_map) == STATED_TENSORS
    assert total == STATED_TOTAL and file_total == STATED_FILES_TOTAL, (total, file_total)
    write_json(os.path.join(out, "model.safetensors.index.json"),
               {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}, 2)
    write_json(os.path.join(out, "config.json"), config(), 2)
    write_json(os.path.join(out, "generation_config.json"),
               {"max_length": 1048576, "eos_token_id": 163586}, 2)
    write_json(os.path.join(out, "tokenizer_config.json"), tokenizer_config(), 2)
    write_json(os.path.join(out, "preprocessor_config.json"), {"media_proc_cfg": {
        "patch_size": 14, "merge_kernel_size": 2, "in_patch_limit": 65536,
        "patch_limit_on_one_side": 512, "fixed_output_tokens": None,
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}}, 2)
    with open(os.path.join(out, "tiktoken.model"), "wb") as f:
        f.writelines(tiktoken_lines())


if __name__ == "__main__":
    main()
