//! A project in a folder of its own, and calls as a model makes them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use decanus_base::Project;
use decanus_base::settings::Approve;
use decanus_base::settings::Settings;
use decanus_builtin::Builtins;
use decanus_chat::{Arguments, FunctionCall};
use decanus_tool::{ApprovalPolicy, Dispatcher, Permissions, Run, ToolRegistry, ToolSource};
use serde_json::Value;

/// The user has approved everything: what tools themselves refuse is looked at here.
pub fn approved() -> ApprovalPolicy {
    ApprovalPolicy::all(Approve::Never)
}

/// What a call came to: the text that the model reads, or the class of the error and its message.
pub type Said = Result<String, (String, String)>;

pub struct Lab {
    dir: tempfile::TempDir,
}

impl Lab {
    /// A project `p` with a neighbour `outside`.
    pub fn new() -> Self {
        let lab = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        lab.write("decanus.toml", "");
        lab.write("../outside/secret.txt", "the secret");
        lab
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join("p")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("p").join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        // Not by `path.parent()` alone: `p` has to be there for `p/../outside` to lead anywhere.
        std::fs::create_dir_all(self.dir.path().join("p")).unwrap();
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    pub fn link(&self, to: impl AsRef<Path>, name: &str) {
        std::os::unix::fs::symlink(to, self.path(name)).unwrap();
    }

    pub fn builtins(&self) -> Builtins {
        let mut project = Project::find(&self.path(".")).unwrap();
        project.home = self.dir.path().join("home");
        let settings = Settings::load(&project.root).unwrap();
        Builtins::of(&project, &settings)
    }

    /// Calls a tool as a model does.
    pub async fn call(&self, name: &str, args: Value) -> Said {
        self.call_in(name, args, &self.run()).await
    }

    pub fn run(&self) -> Run {
        Run::builder(self.path(".decanus/results")).approval(approved()).build()
    }

    pub fn run_with(&self, permissions: Permissions) -> Run {
        Run::builder(self.path(".decanus/results"))
            .permissions(permissions)
            .approval(approved())
            .build()
    }

    pub async fn call_in(&self, name: &str, args: Value, run: &Run) -> Said {
        let source: Arc<dyn ToolSource> = Arc::new(self.builtins());
        let found = ToolRegistry::resolve(&[source], [name]).await.unwrap();
        let Value::Object(args) = args else { panic!() };
        let call = FunctionCall {
            id: "c".into(),
            name: name.into(),
            arguments: Arguments::Object(args),
        };
        let output = Dispatcher::new(Arc::new(found)).call(&call, run).await.output;
        match output.error {
            None => Ok(output.content),
            Some(class) => Err((class, output.content)),
        }
    }

    /// Calls a tool that has to give JSON.
    pub async fn json(&self, name: &str, args: Value) -> Value {
        let text = self.call(name, args).await.unwrap_or_else(|e| panic!("{e:?}"));
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    /// Calls a tool that has to refuse: what it says.
    pub async fn refused(&self, name: &str, args: Value) -> String {
        match self.call(name, args.clone()).await {
            Err((_, message)) => message,
            Ok(text) => panic!("{name} {args} was not refused: {text}"),
        }
    }
}
