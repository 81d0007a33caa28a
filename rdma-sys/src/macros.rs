//! The macros of `verbs.h` and `verbs_api.h` that bindgen cannot read: other names for the kernel's
//! constants and types, and casts.

use crate::bindings::*;
use libc::{c_uint, c_void};

pub type ibv_advise_mr_advice = ib_uverbs_advise_mr_advice;
pub type ibv_flow_action_esp = ib_uverbs_flow_action_esp;
pub type ibv_flow_action_esp_encap = ib_uverbs_flow_action_esp_encap;
pub type ibv_flow_action_esp_flags = ib_uverbs_flow_action_esp_flags;
pub type ibv_flow_action_esp_keymat = ib_uverbs_flow_action_esp_keymat;
pub type ibv_flow_action_esp_keymat_aes_gcm = ib_uverbs_flow_action_esp_keymat_aes_gcm;
pub type ibv_flow_action_esp_keymat_aes_gcm_iv_algo = ib_uverbs_flow_action_esp_keymat_aes_gcm_iv_algo;
pub type ibv_flow_action_esp_replay = ib_uverbs_flow_action_esp_replay;
pub type ibv_flow_action_esp_replay_bmp = ib_uverbs_flow_action_esp_replay_bmp;

/// Access flags that an implementation may ignore.
/// [`Ibverbs::ibv_reg_mr`](crate::Ibverbs::ibv_reg_mr) chooses its symbol by these flags.
pub const IBV_ACCESS_OPTIONAL_RANGE: c_uint = ib_uverbs_access_flags::IB_UVERBS_ACCESS_OPTIONAL_RANGE.0;
pub const IBV_QPF_GRH_REQUIRED: c_uint = ib_uverbs_query_port_flags::IB_UVERBS_QPF_GRH_REQUIRED.0;

pub const IBV_ADVISE_MR_ADVICE_PREFETCH: ibv_advise_mr_advice =
    ib_uverbs_advise_mr_advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH;
pub const IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE: ibv_advise_mr_advice =
    ib_uverbs_advise_mr_advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE;
pub const IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT: ibv_advise_mr_advice =
    ib_uverbs_advise_mr_advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT;
pub const IBV_ADVISE_MR_FLAG_FLUSH: c_uint = ib_uverbs_advise_mr_flag::IB_UVERBS_ADVISE_MR_FLAG_FLUSH.0;

pub const IBV_FLOW_ACTION_ESP_KEYMAT_AES_GCM: ibv_flow_action_esp_keymat =
    ib_uverbs_flow_action_esp_keymat::IB_UVERBS_FLOW_ACTION_ESP_KEYMAT_AES_GCM;
pub const IBV_FLOW_ACTION_IV_ALGO_SEQ: ibv_flow_action_esp_keymat_aes_gcm_iv_algo =
    ib_uverbs_flow_action_esp_keymat_aes_gcm_iv_algo::IB_UVERBS_FLOW_ACTION_IV_ALGO_SEQ;
pub const IBV_FLOW_ACTION_ESP_REPLAY_NONE: ibv_flow_action_esp_replay =
    ib_uverbs_flow_action_esp_replay::IB_UVERBS_FLOW_ACTION_ESP_REPLAY_NONE;
pub const IBV_FLOW_ACTION_ESP_REPLAY_BMP: ibv_flow_action_esp_replay =
    ib_uverbs_flow_action_esp_replay::IB_UVERBS_FLOW_ACTION_ESP_REPLAY_BMP;
pub const IBV_FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO: ibv_flow_action_esp_flags =
    ib_uverbs_flow_action_esp_flags::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO;
pub const IBV_FLOW_ACTION_ESP_FLAGS_FULL_OFFLOAD: ibv_flow_action_esp_flags =
    ib_uverbs_flow_action_esp_flags::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_FULL_OFFLOAD;
pub const IBV_FLOW_ACTION_ESP_FLAGS_TUNNEL: ibv_flow_action_esp_flags =
    ib_uverbs_flow_action_esp_flags::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_TUNNEL;
pub const IBV_FLOW_ACTION_ESP_FLAGS_TRANSPORT: ibv_flow_action_esp_flags =
    ib_uverbs_flow_action_esp_flags::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_TRANSPORT;
pub const IBV_FLOW_ACTION_ESP_FLAGS_DECRYPT: ibv_flow_action_esp_flags =
    ib_uverbs_flow_action_esp_flags::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_DECRYPT;
pub const IBV_FLOW_ACTION_ESP_FLAGS_ENCRYPT: ibv_flow_action_esp_flags =
    ib_uverbs_flow_action_esp_flags::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_ENCRYPT;
pub const IBV_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW: ibv_flow_action_esp_flags =
    ib_uverbs_flow_action_esp_flags::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW;

/// A parent domain's allocator returns this value to have the default allocator used.
pub const IBV_ALLOCATOR_USE_DEFAULT: *mut c_void = std::ptr::without_provenance_mut(usize::MAX);
/// The value of `abi_compat` in the context inside a [`verbs_context`].
pub const __VERBS_ABI_IS_EXTENDED: *mut c_void = std::ptr::without_provenance_mut(usize::MAX);
