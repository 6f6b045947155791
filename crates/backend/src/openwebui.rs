//! Open WebUI: Chat Completions under `/api`, errors as `{"detail": …}`, a web page wherever a path is wrong.

use crate::openai::OpenAi;

/// The dialect of `POST …/api/chat/completions`.
pub fn dialect() -> OpenAi {
    OpenAi::under("openwebui", "/api")
}
