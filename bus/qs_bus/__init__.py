"""The bus: new messages of the queue server go to whoever has subscribed, by themselves."""
