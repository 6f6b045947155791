//! The link between a request's cancellation and llama.cpp's abort callback.

use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use llama_cpp_2::context::params::LlamaContextParams;
use tokio_util::sync::CancellationToken;

/// What the callback looks at while llama.cpp computes: the token of the request that is being worked on.
#[derive(Debug, Default)]
pub struct Abort {
    current: Mutex<Option<CancellationToken>>,
}

impl Abort {
    /// Sets whose cancellation counts from now on.
    pub fn watch(&self, token: Option<CancellationToken>) {
        if let Ok(mut current) = self.current.lock() {
            *current = token;
        }
    }

    /// Whether the request being worked on was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.current
            .lock()
            .is_ok_and(|current| current.as_ref().is_some_and(CancellationToken::is_cancelled))
    }
}

/// Has llama.cpp ask `abort` between the steps of its computation. The context made from these parameters must be
/// dropped before `abort`; its owner keeps both.
#[allow(unsafe_code)]
pub fn install(params: &mut LlamaContextParams, abort: &Arc<Abort>) {
    type Raw = llama_cpp_sys_2::llama_context_params;
    // The wrapper has no setter for the callback. It consists of the raw parameters only, which the sizes prove.
    const { assert!(size_of::<LlamaContextParams>() == size_of::<Raw>()) };
    const { assert!(align_of::<LlamaContextParams>() == align_of::<Raw>()) };
    // SAFETY: a struct whose only non-empty field is a `Raw` of the same size and alignment has it at offset 0 (the
    // versions are pinned, and the assertions above fail the build should that change); the reference is exclusive.
    let raw = unsafe { &mut *std::ptr::from_mut(params).cast::<Raw>() };
    raw.abort_callback = Some(asked);
    raw.abort_callback_data = Arc::as_ptr(abort).cast_mut().cast::<c_void>();
}

#[allow(unsafe_code)]
unsafe extern "C" fn asked(data: *mut c_void) -> bool {
    // SAFETY: `data` is the pointer that `install` took from an `Arc<Abort>`, which outlives the context.
    let abort = unsafe { &*data.cast::<Abort>() };
    abort.is_cancelled()
}
