"""Config values of released encoders, and small ones that keep their structure."""

WINDOW = 16
BERT = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
DISTILBERT = {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48}

SMALL = {
    "bert": {"type_vocab_size": 2, **BERT},
    "modernbert": {"local_attention": 2 * WINDOW, **BERT},
    "roberta": {"pad_token_id": 1, "type_vocab_size": 1, **BERT},
    "distilbert": DISTILBERT,
    "electra": {"embedding_size": 24, "type_vocab_size": 2, **BERT},
    "eurobert": {"num_key_value_heads": 2, "rope_theta": 250_000, **BERT},
    "mpnet": {"relative_attention_num_buckets": 32, **BERT},
    "deberta-v2": {
        "type_vocab_size": 0,
        "position_biased_input": False,
        "relative_attention": True,
        "pos_att_type": "p2c|c2p",
        "position_buckets": 8,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        **BERT,
    },
}
"""One for each encoder under `neobert/families/hf/architectures`; without `max_position_embeddings`."""
PACKED = [name for name in SMALL if name not in ("mpnet", "deberta-v2")]

OF_LLAMA_3 = {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 64,
    "rope_type": "llama3",
}
GROUPED = {"num_key_value_heads": 2, **BERT}
OF_GEMMA = {"head_dim": 16, "hidden_activation": "gelu_pytorch_tanh", **GROUPED}
DECODERS = {
    "llama": {"rope_theta": 500_000.0, "rope_scaling": OF_LLAMA_3, **GROUPED},
    "qwen2": {
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "max_window_layers": 1,
        "tie_word_embeddings": True,
        **GROUPED,
    },
    "qwen3": {"head_dim": 16, "rope_theta": 1_000_000, "tie_word_embeddings": True, **GROUPED},
    "mistral": {"sliding_window": WINDOW, **GROUPED},
    "gemma": {**OF_GEMMA, "num_key_value_heads": 1},
    "gemma2": {
        "query_pre_attn_scalar": 8,
        "sliding_window": WINDOW,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 3.0,
        **OF_GEMMA,
    },
    "gemma3_text": {
        "query_pre_attn_scalar": 16,
        "sliding_window": WINDOW,
        "sliding_window_pattern": 3,
        "rope_theta": 1_000_000,
        "rope_local_base_freq": 10_000,
        **OF_GEMMA,
        "num_key_value_heads": 1,
    },
    "smollm3": {"no_rope_layer_interval": 3, **GROUPED},
    "phi3": {"sliding_window": WINDOW, **GROUPED},
    "olmo2": {"rope_theta": 500_000, **GROUPED},
    "granite": {
        "attention_multiplier": 0.2,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "logits_scaling": 4.0,
        "tie_word_embeddings": True,
        **GROUPED,
    },
    "gpt_neox": {"rotary_pct": 0.25, "rotary_emb_base": 10_000, "use_parallel_residual": True, **BERT},
    "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_inner": None, "attn_pdrop": 0.0},
    "starcoder2": {"sliding_window": WINDOW, **GROUPED},
    "cohere": {"logit_scale": 0.25, "use_qk_norm": True, **GROUPED},
    "glm4": {"head_dim": 8, "partial_rotary_factor": 0.5, **GROUPED},
    "opt": {
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "ffn_dim": 48,
        "word_embed_proj_dim": 32,
    },
}
"""Small causal models with the structure of released ones, and three blocks."""

BASE = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}
OF_ROBERTA = {"type_vocab_size": 1, "max_position_embeddings": 514, "pad_token_id": 1}
RELEASED = {
    "bert-base-uncased": {"model_type": "bert", "vocab_size": 30_522, **BASE},
    "all-MiniLM-L6-v2": {
        "model_type": "bert",
        "vocab_size": 30_522,
        **BASE,
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "intermediate_size": 1536,
    },
    "roberta-base": {"model_type": "roberta", "vocab_size": 50_265, **BASE, **OF_ROBERTA},
    "xlm-roberta-base": {"model_type": "xlm-roberta", "vocab_size": 250_002, **BASE, **OF_ROBERTA},
    "camembert-base": {"model_type": "camembert", "vocab_size": 32_005, **BASE, **OF_ROBERTA},
    "distilbert-base-uncased": {
        "model_type": "distilbert",
        "vocab_size": 30_522,
        "dim": 768,
        "n_layers": 6,
        "n_heads": 12,
        "hidden_dim": 3072,
        "max_position_embeddings": 512,
    },
    "electra-small-discriminator": {
        "model_type": "electra",
        "vocab_size": 30_522,
        **BASE,
        "embedding_size": 128,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
    "electra-base-discriminator": {
        "model_type": "electra",
        "vocab_size": 30_522,
        **BASE,
        "embedding_size": 768,
    },
    "ModernBERT-base": {
        "model_type": "modernbert",
        "vocab_size": 50_368,
        "hidden_size": 768,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "intermediate_size": 1152,
        "local_attention": 128,
        "global_attn_every_n_layers": 3,
        "max_position_embeddings": 8192,
    },
    "EuroBERT-210m": {
        "model_type": "eurobert",
        "vocab_size": 128_256,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 12,
        "head_dim": 64,
        "intermediate_size": 3072,
        "max_position_embeddings": 8192,
        "rope_theta": 250_000,
        "tie_word_embeddings": False,
    },
    "mpnet-base": {
        "model_type": "mpnet",
        "vocab_size": 30_527,
        **BASE,
        "max_position_embeddings": 514,
        "relative_attention_num_buckets": 32,
    },
    "deberta-v3-base": {
        "model_type": "deberta-v2",
        "vocab_size": 128_100,
        **BASE,
        "type_vocab_size": 0,
        "relative_attention": True,
        "position_buckets": 256,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": "p2c|c2p",
        "position_biased_input": False,
        "max_relative_positions": -1,
    },
}


def dropouts(architecture):
    """Return a high value for every dropout that a config.json of the architecture may set in the blocks."""
    from transformers import AutoConfig

    names = AutoConfig.for_model(architecture).to_dict()
    return {name: 0.5 for name in names if name.endswith(("dropout", "pdrop", "dropout_prob"))}
